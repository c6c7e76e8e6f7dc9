/* Gathering a client's messages (producer/gathering.py).

   Intake.add neither runs Python code nor gives up the interpreter's lock between the look at a sender's lock and the
   last change, so that each message is added as under that lock: a build without the interpreter's lock can't have it. */

#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *locked;  /* bound `locked` of the sender's lock; NULL: one thread alone adds */
    PyObject *engine;  /* its `bytes`: of unsettled messages */
    PyObject *open;    /* its open batches, by (topic, partition that the caller named) */
    PyObject *handle;  /* makes a message's handle, of its batch and index */
    PyObject *topic, *key;  /* the last topic, and its key in `open` */
    PyObject *bodies, *flags, *bytes, *zero, *one;  /* names of attributes; flags */
    Py_ssize_t header_bytes, data_bytes_max, messages_max, batch_bytes, bytes_max;
} Intake;

/* Return a new reference to attribute *name*, an exact list; NULL with an error. */
static PyObject *list_of(PyObject *thing, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(thing, name);
    if (found != NULL && !PyList_CheckExact(found)) {
        PyErr_Format(PyExc_TypeError, "%U is a list, not %s", name, Py_TYPE(found)->tp_name);
        Py_CLEAR(found);
    }
    return found;
}

/* Return attribute *name*, an int from 0 on; -1 with an error. */
static Py_ssize_t size_of(PyObject *thing, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(thing, name);
    if (found == NULL)
        return -1;
    Py_ssize_t size = PyLong_CheckExact(found) ? PyLong_AsSsize_t(found) : -1;
    Py_DECREF(found);
    if (size < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%U is an int from 0 on", name);
    return size;
}

/* Set attribute *name*; 0, or -1 with an error. */
static int set_size(PyObject *thing, PyObject *name, Py_ssize_t size)
{
    PyObject *value = PyLong_FromSsize_t(size);
    if (value == NULL)
        return -1;
    int failed = PyObject_SetAttr(thing, name, value);
    Py_DECREF(value);
    return failed;
}

static void drop_from(PyObject *list, Py_ssize_t index)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyList_SetSlice(list, index, PyList_GET_SIZE(list), NULL) < 0)
        PyErr_WriteUnraisable(list);
    PyErr_Restore(type, value, trace);
}

/* Add to both lists and both sums; 0, or -1 with an error, without effect on the lists. */
static int append(Intake *self, PyObject *batch, PyObject *bodies, PyObject *flags, PyObject *body, PyObject *flag,
                  Py_ssize_t filled, Py_ssize_t total)
{
    Py_ssize_t index = PyList_GET_SIZE(bodies);
    if (PyList_Append(bodies, body) < 0)
        return -1;
    if (PyList_Append(flags, flag) < 0 || set_size(batch, self->bytes, filled) < 0 ||
        set_size(self->engine, self->bytes, total) < 0) {
        drop_from(bodies, index);
        drop_from(flags, index);
        return -1;
    }
    return 0;
}

/* Return a new reference to the key of *topic* and *wanted* in `open`; NULL with an error. */
static PyObject *key_of(Intake *self, PyObject *topic, PyObject *wanted)
{
    if (topic != self->topic || wanted != Py_None) {
        PyObject *key = PyTuple_Pack(2, topic, wanted);
        if (key == NULL || wanted != Py_None)
            return key;
        Py_INCREF(topic);
        Py_XSETREF(self->topic, topic);
        Py_XSETREF(self->key, key);
    }
    Py_INCREF(self->key);
    return self->key;
}

/* Add *body* to *batch*, if its place is still *index*: a new reference to *made*, to None, or NULL with an error. */
static PyObject *add_to(Intake *self, PyObject *key, PyObject *batch, PyObject *bodies, PyObject *flags, PyObject *body,
                        PyObject *flag, Py_ssize_t index, PyObject *made)
{
    PyObject *open = PyDict_GetItemWithError(self->open, key);
    if (open == NULL && PyErr_Occurred())
        return NULL;
    if (self->locked != NULL) {
        PyObject *locked = PyObject_CallNoArgs(self->locked);
        if (locked == NULL)
            return NULL;
        Py_DECREF(locked);
        if (locked != Py_False)
            Py_RETURN_NONE;
    }
    if (open != batch || PyList_GET_SIZE(bodies) != index || PyList_GET_SIZE(flags) != index)
        Py_RETURN_NONE;
    Py_ssize_t filled = size_of(batch, self->bytes), total = filled < 0 ? -1 : size_of(self->engine, self->bytes);
    if (total < 0)
        return NULL;
    Py_ssize_t size = self->header_bytes + PyBytes_GET_SIZE(body);  /* data_bytes_max is far from overflow */
    if (filled > self->batch_bytes || size >= self->batch_bytes - filled || total > self->bytes_max ||
        size > self->bytes_max - total)
        Py_RETURN_NONE;
    if (append(self, batch, bodies, flags, body, flag, filled + size, total + size) < 0)
        return NULL;
    Py_INCREF(made);
    return made;
}

/* Add *body* to the open batch of *key*: a new reference to its handle, to None, or NULL with an error. */
static PyObject *add_by(Intake *self, PyObject *key, PyObject *body, PyObject *flag)
{
    PyObject *batch = PyDict_GetItemWithError(self->open, key), *result = NULL;
    if (batch == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    Py_INCREF(batch);
    PyObject *bodies = list_of(batch, self->bodies), *flags = bodies == NULL ? NULL : list_of(batch, self->flags);
    if (flags != NULL) {
        Py_ssize_t index = PyList_GET_SIZE(bodies);
        if (index + 1 >= self->messages_max) {
            Py_INCREF(Py_None);
            result = Py_None;
        } else {
            PyObject *number = PyLong_FromSsize_t(index), *given[3] = {NULL, batch, number};
            PyObject *made = number == NULL ? NULL : PyObject_Vectorcall(
                self->handle, given + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            /* Making it may have run anything: add_to looks at everything again. */
            if (made != NULL)
                result = add_to(self, key, batch, bodies, flags, body, flag, index, made);
            Py_XDECREF(made);
            Py_XDECREF(number);
        }
    }
    Py_XDECREF(bodies);
    Py_XDECREF(flags);
    Py_DECREF(batch);
    return result;
}

/* Return the data part of a message with *attribute* (protocol/messages.py); None if Python must decide. */
static PyObject *with_attribute(Intake *self, PyObject *payload, PyObject *attribute)
{
    Py_ssize_t bytes, room = self->data_bytes_max - ATTRIBUTE_AT - PyBytes_GET_SIZE(payload);
    const char *text = PyUnicode_CheckExact(attribute) ? PyUnicode_AsUTF8AndSize(attribute, &bytes) : NULL;
    if (text == NULL && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear();  /* it has no UTF-8 form: Python says so */
    }
    if (text == NULL || bytes > room)
        Py_RETURN_NONE;
    PyObject *made = PyBytes_FromStringAndSize(NULL, ATTRIBUTE_AT + bytes + PyBytes_GET_SIZE(payload));
    if (made == NULL)
        return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(made);
    for (int byte = 0; byte < ATTRIBUTE_AT; byte++)
        to[byte] = (unsigned char)((uint32_t)bytes >> (24 - 8 * byte));
    memcpy(to + ATTRIBUTE_AT, text, (size_t)bytes);
    memcpy(to + ATTRIBUTE_AT + bytes, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload));
    return made;
}

static PyObject *intake_add(Intake *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || count > 5) {
        PyErr_Format(PyExc_TypeError, "add takes a topic, a body, a partition, a flag and an attribute, not %zd arguments",
                     count);
        return NULL;
    }
    PyObject *topic = args[0], *body = args[1], *wanted = count > 2 ? args[2] : Py_None;
    PyObject *flag = count > 3 ? args[3] : self->zero, *attribute = count > 4 ? args[4] : Py_None;
    if (!PyUnicode_CheckExact(topic) || !PyBytes_CheckExact(body) || !PyLong_CheckExact(flag) ||
        PyBytes_GET_SIZE(body) > self->data_bytes_max)
        Py_RETURN_NONE;
    if (attribute == Py_None) {
        Py_INCREF(body);
    } else {
        body = with_attribute(self, body, attribute);
        if (body == NULL || body == Py_None)
            return body;
        flag = self->one;
    }
    PyObject *key = key_of(self, topic, wanted), *result = key == NULL ? NULL : add_by(self, key, body, flag);
    Py_XDECREF(key);
    Py_DECREF(body);
    return result;
}

static int intake_traverse(Intake *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->locked);
    Py_VISIT(self->engine);
    Py_VISIT(self->open);
    Py_VISIT(self->handle);
    Py_VISIT(self->key);
    return 0;
}

static int intake_clear(Intake *self)
{
    Py_CLEAR(self->locked);
    Py_CLEAR(self->engine);
    Py_CLEAR(self->open);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->topic);
    Py_CLEAR(self->key);
    Py_CLEAR(self->bodies);
    Py_CLEAR(self->flags);
    Py_CLEAR(self->bytes);
    Py_CLEAR(self->zero);
    Py_CLEAR(self->one);
    return 0;
}

static void intake_dealloc(Intake *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    intake_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *intake_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"locked", "engine", "open_batches", "handle", "header_bytes", "data_bytes_max", "messages_max",
                            "batch_bytes", "bytes_max", NULL};
    PyObject *locked, *engine, *open, *handle;
    Py_ssize_t header_bytes, data_bytes_max, messages_max, batch_bytes, bytes_max;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOO!Onnnnn", names, &locked, &engine, &PyDict_Type, &open, &handle,
                                     &header_bytes, &data_bytes_max, &messages_max, &batch_bytes, &bytes_max))
        return NULL;
    if (locked != Py_None && !PyCFunction_Check(locked)) {
        PyErr_SetString(PyExc_TypeError, "locked is a lock's own method, or None");
        return NULL;
    }
    if (header_bytes < 0 || data_bytes_max < 0 || data_bytes_max > INT32_MAX || header_bytes > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "sizes are 31-bit integers from 0 on");
        return NULL;
    }
    Intake *self = (Intake *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (locked != Py_None) {
        Py_INCREF(locked);
        self->locked = locked;
    }
    Py_INCREF(engine);
    self->engine = engine;
    Py_INCREF(open);
    self->open = open;
    Py_INCREF(handle);
    self->handle = handle;
    self->header_bytes = header_bytes;
    self->data_bytes_max = data_bytes_max;
    self->messages_max = messages_max;
    self->batch_bytes = batch_bytes;
    self->bytes_max = bytes_max;
    self->bodies = PyUnicode_InternFromString("bodies");
    self->flags = PyUnicode_InternFromString("flags");
    self->bytes = PyUnicode_InternFromString("bytes");
    self->zero = PyLong_FromLong(0);
    self->one = PyLong_FromLong(FLAG_ATTRIBUTE);
    if (self->bodies == NULL || self->flags == NULL || self->bytes == NULL || self->zero == NULL || self->one == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyMethodDef intake_methods[] = {
    {"add", (PyCFunction)(void (*)(void))intake_add, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot intake_slots[] = {
    {Py_tp_new, intake_new},         {Py_tp_dealloc, intake_dealloc}, {Py_tp_traverse, intake_traverse},
    {Py_tp_clear, intake_clear},     {Py_tp_methods, intake_methods}, {0, NULL},
};

PyType_Spec intake_spec = {
    .name = "meta_client._core.Intake",
    .basicsize = sizeof(Intake),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = intake_slots,
};
