"""The command line `metaq`. Read: main (command lookup, error output), output -> one file per noun."""
