/* Decoding the commands of branches: their requests (protocol/request_lines.py), and results (response_lines.py). */

#include "core.h"

enum { TOKENS_MAX = 8, DIGITS_MAX = 10 };

typedef struct {
    const char *at;
    Py_ssize_t length;
} Token;

/* What a decoder has received, and what it allows. */
typedef struct {
    PyObject *commands;
    const char *at, *end;
    Py_ssize_t line_bytes_max, body_bytes_max;
} Chunk;

/* Split the line at *chunk* into tokens, and set *after* to what follows it. Return their number; 0 if the line is not
   whole, or one that Python judges: too long, of too many tokens, or with a CR or a space at its end. */
static int split_line(const Chunk *chunk, Token *tokens, const char **after)
{
    Py_ssize_t left = chunk->end - chunk->at;
    const char *cr = memchr(chunk->at, '\r', left <= chunk->line_bytes_max ? left : chunk->line_bytes_max + 1);
    if (cr == NULL || cr + 1 == chunk->end || cr[1] != '\n')
        return 0;
    int count = 0;
    const char *at = chunk->at, *space;
    do {
        if (count == TOKENS_MAX)
            return 0;
        space = memchr(at, ' ', cr - at);
        tokens[count++] = (Token){at, (space == NULL ? cr : space) - at};
        at = space == NULL ? cr : space + 1;
    } while (space != NULL);
    *after = cr + 2;
    return tokens[count - 1].length > 0 ? count : 0;
}

static int is_word(Token token, const char *word)
{
    return token.length == (Py_ssize_t)strlen(word) && memcmp(token.at, word, token.length) == 0;
}

static int is_digits(Token token)
{
    Py_ssize_t at = 0;
    while (at < token.length && token.at[at] >= '0' && token.at[at] <= '9')
        at++;
    return at > 0 && at == token.length;
}

/* 1 if *token* is an int32 without a plus sign. */
static int to_int32(Token token, long *number)
{
    int is_negative = token.length > 0 && token.at[0] == '-';
    Token digits = {token.at + is_negative, token.length - is_negative};
    if (digits.length > DIGITS_MAX || !is_digits(digits))
        return 0;
    long long value = 0;
    for (Py_ssize_t at = 0; at < digits.length; at++)
        value = 10 * value + (digits.at[at] - '0');
    value = is_negative ? -value : value;
    *number = (long)value;
    return value >= INT32_MIN && value <= INT32_MAX;
}

static PyObject *text_of(Token token)
{
    return PyUnicode_DecodeUTF8(token.at, token.length, "strict");
}

/* Return the key that *branch_key* makes of the text of *token*. */
static PyObject *key_of(PyObject *branch_key, Token token)
{
    PyObject *text = text_of(token), *key = text == NULL ? NULL : PyObject_CallOneArg(branch_key, text);
    Py_XDECREF(text);
    return key;
}

/* Return a command of *kind* with *fields*, which it takes over; NULL with an error, also if one of them is NULL. */
static PyObject *command_of(PyObject *kind, PyObject **fields, int count)
{
    int field = 0;
    while (field < count && fields[field] != NULL)
        field++;
    PyObject *made = field < count ? NULL : PyObject_Vectorcall(kind, fields, (size_t)count, NULL);
    for (field = 0; field < count; field++)
        Py_XDECREF(fields[field]);
    return made;
}

/* Append *command*, a new reference, and move *chunk* behind it. 1: done. 0: it is NULL, without an error or with a
   ValueError, so that Python judges it. -1 with another error. */
static int take(Chunk *chunk, PyObject *command, const char *after)
{
    if (command == NULL) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_ValueError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int failed = PyList_Append(chunk->commands, command);
    Py_DECREF(command);
    chunk->at = after;
    return failed < 0 ? -1 : 1;
}

/* True if a body of *length* bytes at *after* is whole and allowed. */
static int has_body(const Chunk *chunk, const char *after, long length)
{
    return length >= 0 && length <= chunk->body_bytes_max && length <= chunk->end - after;
}

PyObject *plain_results(PyObject *module, PyObject *args)
{
    PyObject *result, *bytes;
    Py_ssize_t position;
    Chunk chunk;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!nO!nn", &result, &PyBytes_Type, &bytes, &position, &PyList_Type, &chunk.commands,
                          &chunk.line_bytes_max, &chunk.body_bytes_max))
        return NULL;
    const char *start = PyBytes_AS_STRING(bytes), *after;
    chunk.at = start + position;
    chunk.end = start + PyBytes_GET_SIZE(bytes);
    for (int taken = 1; taken;) {
        Token tokens[TOKENS_MAX];
        long status, length, opaque;
        if (split_line(&chunk, tokens, &after) != 4 || !is_word(tokens[0], "result") || !to_int32(tokens[1], &status) ||
            !to_int32(tokens[2], &length) || !to_int32(tokens[3], &opaque) || !has_body(&chunk, after, length))
            break;
        PyObject *fields[] = {PyLong_FromLong(status), PyBytes_FromStringAndSize(after, length), PyLong_FromLong(opaque)};
        if ((taken = take(&chunk, command_of(result, fields, 3), after + length)) < 0)
            return NULL;
    }
    return PyLong_FromSsize_t(chunk.at - start);
}

/* Return the command of a `transaction` line; NULL if Python has to judge it. */
static PyObject *transaction_of(PyObject *kind, PyObject *branch_key, PyObject *verbs, const Token *tokens, int count)
{
    static const Token none = {NULL, 0};
    Token timeout = none, qualifier = none;
    long seconds = 0, opaque;
    if (count == 7)
        timeout = tokens[4], qualifier = tokens[5];
    else if (count == 6)
        qualifier = tokens[4];
    if (count < 5 || count > 7 || (count > 5 && qualifier.length == 0) || !to_int32(tokens[count - 1], &opaque) ||
        (count == 7 && !to_int32(timeout, &seconds)) || (count == 6 && is_digits(qualifier)))
        return NULL;
    PyObject *name = PyBytes_FromStringAndSize(tokens[3].at, tokens[3].length);
    PyObject *verb = name == NULL ? NULL : PyDict_GetItemWithError(verbs, name);
    Py_XDECREF(name);
    if (verb == NULL)
        return NULL;
    PyObject *fields[] = {
        is_word(tokens[1], "null") ? Py_NewRef(Py_None) : key_of(branch_key, tokens[1]),
        NULL,
        Py_NewRef(verb),
        seconds > 0 ? PyLong_FromLong(seconds) : Py_NewRef(Py_None),
        NULL,
        PyLong_FromLong(opaque),
    };
    if (fields[0] != NULL && (fields[1] = text_of(tokens[2])) != NULL)
        fields[4] = count > 5 ? text_of(qualifier) : Py_NewRef(Py_None);
    return command_of(kind, fields, 6);
}

/* Return the put into a branch whose line has *tokens*, and whose body, of *length*, is at *body*. */
static PyObject *put_of(PyObject *kind, PyObject *branch_key, const Token *tokens, const long *numbers, const char *body,
                        long length)
{
    PyObject *key = key_of(branch_key, tokens[6]);
    if (key == NULL)
        return NULL;
    PyObject *fields[] = {
        text_of(tokens[1]),
        PyLong_FromLong(numbers[0]),
        PyLong_FromLong(numbers[1]),
        numbers[2] == -1 ? Py_NewRef(Py_None) : PyLong_FromLong(numbers[2]),
        key,
        PyLong_FromLong(numbers[3]),
        PyBytes_FromStringAndSize(body, length),
    };
    return command_of(kind, fields, 7);
}

PyObject *branch_requests(PyObject *module, PyObject *args)
{
    PyObject *put, *transaction, *branch_key, *verbs, *bytes;
    Py_ssize_t position;
    Chunk chunk;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO!O!nO!nn", &put, &transaction, &branch_key, &PyDict_Type, &verbs, &PyBytes_Type,
                          &bytes, &position, &PyList_Type, &chunk.commands, &chunk.line_bytes_max,
                          &chunk.body_bytes_max))
        return NULL;
    const char *start = PyBytes_AS_STRING(bytes), *after;
    chunk.at = start + position;
    chunk.end = start + PyBytes_GET_SIZE(bytes);
    for (int taken = 1; taken;) {
        Token tokens[TOKENS_MAX];
        int count = split_line(&chunk, tokens, &after);
        long length, numbers[4]; /* partition, flag, checksum, opaque */
        if (count > 0 && is_word(tokens[0], "transaction"))
            taken = take(&chunk, transaction_of(transaction, branch_key, verbs, tokens, count), after);
        else if (count == 8 && is_word(tokens[0], "put") && to_int32(tokens[3], &length) &&
                 has_body(&chunk, after, length) && to_int32(tokens[2], &numbers[0]) &&
                 to_int32(tokens[4], &numbers[1]) && to_int32(tokens[5], &numbers[2]) &&
                 to_int32(tokens[7], &numbers[3]))
            taken = take(&chunk, put_of(put, branch_key, tokens, numbers, after, length), after + length);
        else
            break;
        if (taken < 0)
            return NULL;
    }
    return PyLong_FromSsize_t(chunk.at - start);
}
