"""Messages that go with the transactions of frameworks: Django's atomic blocks, and the transaction package of Zope and
Pyramid.

Read: django, zope; both use a client.
"""
