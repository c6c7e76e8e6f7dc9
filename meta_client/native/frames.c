/* Finding and decoding the messages of a fetch (consumer/messages/), stamping those of a batch (protocol/stamping.py). */

#include "core.h"

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

/* Bytes for a checksum's function to read. One object serves all messages of a call, with other bytes each time: making a
   memoryview of each took longer than the checksum of 100 bytes. */
typedef struct {
    PyObject_HEAD
    const unsigned char *at;
    Py_ssize_t length;
} Span;

static int span_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, self, (void *)((Span *)self)->at, ((Span *)self)->length, 1, flags);
}

static PyBufferProcs span_buffer = {span_getbuffer, NULL};

PyTypeObject span_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meta_client._core.Span",
    .tp_basicsize = sizeof(Span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_buffer = &span_buffer,
};

/* Return a new Span of nothing; NULL with an error. */
static Span *new_span(void)
{
    Span *span = PyObject_New(Span, &span_type);
    if (span != NULL) {
        span->at = (const unsigned char *)"";
        span->length = 0;
    }
    return span;
}

/* End the use of *span*, or NULL: whoever has kept it finds nothing in it. */
static void end_span(Span *span)
{
    if (span != NULL)
        span->length = 0;
    Py_XDECREF(span);
}

/* 1 if the frame at *at*, with *length* bytes of data, has their checksum, 0 if not, -1 with an error. */
static int is_sound(PyObject *crc32, Span *span, const unsigned char *at, Py_ssize_t length)
{
    span->at = at + HEADER_BYTES;
    span->length = length;
    PyObject *found = PyObject_CallOneArg(crc32, (PyObject *)span);
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

/* Return a message of *kind*, a named tuple of eight, of the frame at *at*; NULL with an error.

   *is_leaf*: it can be part of no cycle, as it refers to nothing that the collector looks after. Then the collector does
   not look after it either, as CPython does with tuples of its own: going through each message took as long as making
   it. */
static PyObject *message_of(PyTypeObject *kind, PyObject *topic, PyObject *partition, PyObject *offset,
                            PyObject *next_offset, int is_leaf, const unsigned char *at, Py_ssize_t start,
                            Py_ssize_t length)
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
    if (is_leaf)
        PyObject_GC_UnTrack(made);
    return made;
}

PyObject *plain_messages(PyObject *module, PyObject *args)
{
    PyTypeObject *kind;
    PyObject *topic, *partition, *first, *crc32, *result = NULL, *messages = NULL, *offset = NULL;
    Py_buffer body;
    Span *span = NULL;
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
    if ((messages = PyList_New(0)) == NULL || (span = new_span()) == NULL)
        goto end;
    long long base = PyLong_AsLongLongAndOverflow(first, &is_beyond);
    if (is_beyond || base < 0 || base > INT64_MAX - body.len)
        count_max = 0;  /* Python's numbers have no end */
    if ((offset = PyLong_FromLongLong(count_max > 0 ? base + position : 0)) == NULL)
        goto end;
    int is_leaf = PyUnicode_CheckExact(topic) && !PyObject_GC_IsTracked(partition);
    const unsigned char *bytes = body.buf;
    while (PyList_GET_SIZE(messages) < count_max) {
        const unsigned char *at = bytes + position;
        Py_ssize_t length = data_length(at, body.len - position, data_bytes_max);
        uint32_t flag = length < 0 ? 0 : read_u32(at + FLAG_AT);
        Py_ssize_t start = length < 0 || flag > FLAG_ATTRIBUTE ? -1 : payload_start(at + HEADER_BYTES, length, flag);
        if (start < 0)
            break;
        if (crc32 != Py_None) {
            int sound = is_sound(crc32, span, at, length);
            if (sound < 0)
                goto end;
            if (!sound)
                break;
        }
        PyObject *next_offset = PyLong_FromLongLong(base + position + HEADER_BYTES + length);
        if (next_offset == NULL)
            goto end;
        PyObject *made = message_of(kind, topic, partition, offset, next_offset, is_leaf, at, start, length);
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
    end_span(span);
    Py_XDECREF(messages);
    Py_XDECREF(offset);
    return result;
}

PyObject *alike_frames(PyObject *module, PyObject *args)
{
    Py_buffer body;
    Span *span = NULL;
    PyObject *crc32, *result = NULL;
    Py_ssize_t position, least, count_max, data_bytes_max, alike = 0, sound_ones = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nnnnO", &body, &position, &least, &count_max, &data_bytes_max, &crc32))
        return NULL;
    if (position < 0 || position > body.len || data_bytes_max < 0) {
        PyErr_SetString(PyExc_ValueError, "a position within the body, and sizes from 0 on");
        goto end;
    }
    if ((span = new_span()) == NULL)
        goto end;
    const unsigned char *first = (const unsigned char *)body.buf + position;
    Py_ssize_t length = data_length(first, body.len - position, data_bytes_max), size = HEADER_BYTES + length;
    Py_ssize_t there = length < 0 ? 0 : (body.len - position) / size;
    for (; alike < there && alike < count_max; alike++) {
        const unsigned char *at = first + alike * size;
        if (read_u32(at) != (uint32_t)length || read_u32(at + FLAG_AT) != 0)
            break;
    }
    for (; alike >= least && sound_ones < alike; sound_ones++) {
        int sound = is_sound(crc32, span, first + sound_ones * size, length);
        if (sound < 0)
            goto end;
        if (!sound)
            break;
    }
    result = PyLong_FromSsize_t(sound_ones < least ? 0 : sound_ones);
end:
    PyBuffer_Release(&body);
    end_span(span);
    return result;
}

PyObject *stamp_frames(PyObject *module, PyObject *args)
{
    Py_buffer frames;
    Span *span = NULL;
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
    if ((span = new_span()) == NULL)
        goto end;
    unsigned char *bytes = frames.buf;
    for (; stamped < count; stamped++) {
        unsigned char *at = bytes + position;
        Py_ssize_t length = data_length(at, end - position, data_bytes_max);
        if (length < 0 || read_u32(at + FLAG_AT) >> 16 == magic)
            break;
        int sound = is_sound(crc32, span, at, length);
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
    end_span(span);
    return result;
}
