/* What is done for every message, in C, with the same effects as the Python it stands for: gathering a client's
   (producer/gathering.py), decoding those of a fetch (consumer/batch.py), stamping those of a batch (protocol/stamping.py).

   Optional: hatch_build.py compiles it where there is a compiler, core.py imports it if it is there.

   Each function does the common case, and leaves the first message that is another to Python. Intake.add neither runs
   Python code nor gives up the interpreter's lock between the look at a sender's lock and the last change, so that each
   message is added as under that lock. A build without the interpreter's lock can't have it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "needs the interpreter's lock"
#endif

/* A frame's header (protocol/messages.py): big-endian length, crc31, id, flag. */
enum { HEADER_BYTES = 20, ID_AT = 8, FLAG_AT = 16, CRC31_MASK = 0x7FFFFFFF, FLAG_ATTRIBUTE = 1, ATTRIBUTE_AT = 4 };
#define TRACE_NAME "traceparent="
enum { TRACE_BYTES = 67 };

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

static PyType_Spec intake_spec = {
    .name = "meta_client._core.Intake",
    .basicsize = sizeof(Intake),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = intake_slots,
};

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Return the length of the data of the frame at *at*, of which *left* bytes are there; -1 if it is no whole frame. */
static Py_ssize_t data_length(const unsigned char *at, Py_ssize_t left, Py_ssize_t data_bytes_max)
{
    if (left < HEADER_BYTES)
        return -1;
    uint32_t length = read_u32(at);
    return length <= (size_t)data_bytes_max && length <= (size_t)(left - HEADER_BYTES) ? (Py_ssize_t)length : -1;
}

/* 1 if the frame at *at*, with *length* bytes of data, has their checksum, 0 if not, -1 with an error. */
static int is_sound(PyObject *crc32, const unsigned char *at, Py_ssize_t length)
{
    PyObject *data = PyMemoryView_FromMemory((char *)at + HEADER_BYTES, length, PyBUF_READ);
    PyObject *found = data == NULL ? NULL : PyObject_CallOneArg(crc32, data);
    Py_XDECREF(data);
    if (found == NULL)
        return -1;
    unsigned long crc = PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    if (crc == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    return (crc & CRC31_MASK) == read_u32(at + 4);
}

/* Return the bytes before the payload in *data*, of *length*: an attribute with its length, if *flag* says so; -1 if there
   is a trace context (protocol/trace_context.py), or no whole attribute. */
static Py_ssize_t payload_start(const unsigned char *data, Py_ssize_t length, uint32_t flag)
{
    if (flag == 0)
        return 0;
    if (length < ATTRIBUTE_AT || read_u32(data) > (size_t)(length - ATTRIBUTE_AT))
        return -1;
    Py_ssize_t start = ATTRIBUTE_AT + (Py_ssize_t)read_u32(data);
    if (start - ATTRIBUTE_AT >= TRACE_BYTES && memcmp(data + start - TRACE_BYTES, TRACE_NAME, strlen(TRACE_NAME)) == 0)
        return -1;
    return start;
}

/* Return a message of *kind*, a named tuple of eight, of the frame at *at*; NULL with an error. */
static PyObject *message_of(PyTypeObject *kind, PyObject *topic, PyObject *partition, PyObject *offset,
                            PyObject *next_offset, const unsigned char *at, Py_ssize_t start, Py_ssize_t length)
{
    const char *data = (const char *)at + HEADER_BYTES;
    uint64_t id = (uint64_t)read_u32(at + ID_AT) << 32 | read_u32(at + ID_AT + 4);
    PyObject *made = kind->tp_alloc(kind, 8);
    if (made == NULL)
        return NULL;
    PyObject *fields[] = {topic, partition, offset, NULL, NULL, Py_None, NULL, next_offset};
    for (int field = 0; field < 8; field++) {
        Py_XINCREF(fields[field]);
        PyTuple_SET_ITEM(made, field, fields[field]);
    }
    if (start > 0) {
        Py_DECREF(Py_None);
        PyTuple_SET_ITEM(made, 5, PyUnicode_DecodeUTF8(data + ATTRIBUTE_AT, start - ATTRIBUTE_AT, "replace"));
    }
    PyTuple_SET_ITEM(made, 3, PyLong_FromLongLong((long long)id));
    PyTuple_SET_ITEM(made, 4, PyLong_FromLong((long)read_u32(at + FLAG_AT)));
    PyTuple_SET_ITEM(made, 6, PyBytes_FromStringAndSize(data + start, length - start));
    for (int field = 3; field < 7; field++)
        if (PyTuple_GET_ITEM(made, field) == NULL) {
            Py_DECREF(made);
            return NULL;
        }
    return made;
}

PyDoc_STRVAR(plain_messages_doc, "Decode plain messages; see _core.pyi.");
static PyObject *plain_messages(PyObject *module, PyObject *args)
{
    PyTypeObject *kind;
    PyObject *topic, *partition, *first, *crc32, *result = NULL, *messages = NULL, *offset = NULL;
    Py_buffer body;
    int is_beyond;
    Py_ssize_t position, count_max, data_bytes_max;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OOy*O!nnnO", &PyType_Type, &kind, &topic, &partition, &body, &PyLong_Type,
                          &first, &position, &count_max, &data_bytes_max, &crc32))
        return NULL;
    if (!PyType_IsSubtype(kind, &PyTuple_Type) || kind->tp_basicsize != PyTuple_Type.tp_basicsize ||
        kind->tp_itemsize != PyTuple_Type.tp_itemsize) {
        PyErr_SetString(PyExc_TypeError, "messages are of a named tuple");
        goto end;
    }
    if (position < 0 || position > body.len || data_bytes_max < 0) {
        PyErr_SetString(PyExc_ValueError, "a position within the body, and sizes from 0 on");
        goto end;
    }
    if ((messages = PyList_New(0)) == NULL)
        goto end;
    long long base = PyLong_AsLongLongAndOverflow(first, &is_beyond);
    if (is_beyond || base < 0 || base > INT64_MAX - body.len)
        count_max = 0;  /* Python's numbers have no end */
    if ((offset = PyLong_FromLongLong(count_max > 0 ? base + position : 0)) == NULL)
        goto end;
    const unsigned char *bytes = body.buf;
    while (PyList_GET_SIZE(messages) < count_max) {
        const unsigned char *at = bytes + position;
        Py_ssize_t length = data_length(at, body.len - position, data_bytes_max);
        uint32_t flag = length < 0 ? 0 : read_u32(at + FLAG_AT);
        Py_ssize_t start = length < 0 || flag > FLAG_ATTRIBUTE ? -1 : payload_start(at + HEADER_BYTES, length, flag);
        if (start < 0)
            break;
        if (crc32 != Py_None) {
            int sound = is_sound(crc32, at, length);
            if (sound < 0)
                goto end;
            if (!sound)
                break;
        }
        PyObject *next_offset = PyLong_FromLongLong(base + position + HEADER_BYTES + length);
        if (next_offset == NULL)
            goto end;
        PyObject *made = message_of(kind, topic, partition, offset, next_offset, at, start, length);
        Py_SETREF(offset, next_offset);
        if (made == NULL)
            goto end;
        int failed = PyList_Append(messages, made);
        Py_DECREF(made);
        if (failed < 0)
            goto end;
        position += HEADER_BYTES + length;
    }
    result = Py_BuildValue("On", messages, position);
end:
    PyBuffer_Release(&body);
    Py_XDECREF(messages);
    Py_XDECREF(offset);
    return result;
}

PyDoc_STRVAR(stamp_frames_doc, "Give ids to frames at the front; see _core.pyi.");
static PyObject *stamp_frames(PyObject *module, PyObject *args)
{
    Py_buffer frames;
    PyObject *crc32, *result = NULL;
    Py_ssize_t end, count, data_bytes_max, position = 0, stamped = 0;
    long long first_id;
    unsigned int magic;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*nnLnIO", &frames, &end, &count, &first_id, &data_bytes_max, &magic, &crc32))
        return NULL;
    if (end < 0 || end > frames.len || count < 0 || data_bytes_max < 0 || first_id > INT64_MAX - count) {
        PyErr_SetString(PyExc_ValueError, "an end within the frames, sizes from 0 on, and ids that fit");
        goto end;
    }
    unsigned char *bytes = frames.buf;
    for (; stamped < count; stamped++) {
        unsigned char *at = bytes + position;
        Py_ssize_t length = data_length(at, end - position, data_bytes_max);
        if (length < 0 || read_u32(at + FLAG_AT) >> 16 == magic)
            break;
        int sound = is_sound(crc32, at, length);
        if (sound < 0)
            goto end;
        if (!sound)
            break;
        uint64_t id = (uint64_t)first_id + (uint64_t)stamped;
        for (int byte = 0; byte < 8; byte++)
            at[ID_AT + byte] = (unsigned char)(id >> (56 - 8 * byte));
        position += HEADER_BYTES + length;
    }
    result = Py_BuildValue("nn", stamped, position);
end:
    PyBuffer_Release(&frames);
    return result;
}

static PyMethodDef core_methods[] = {
    {"plain_messages", plain_messages, METH_VARARGS, plain_messages_doc},
    {"stamp_frames", stamp_frames, METH_VARARGS, stamp_frames_doc},
    {NULL, NULL, 0, NULL},
};

static int core_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &intake_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed < 0 ? -1 : PyModule_AddIntConstant(module, "INTERFACE", 4);
}

static PyModuleDef_Slot core_slots[] = {{Py_mod_exec, core_exec}, {0, NULL}};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT, "meta_client._core", NULL, 0, core_methods, core_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
