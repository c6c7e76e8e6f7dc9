/* The native core: what is done for every message, in C, with the same effects as the Python it stands for.

   Optional: hatch_build.py compiles it where there is a compiler, meta_client/core.py imports it if it is there. Each
   function does the common case, and leaves the first message that is another to Python. _core.pyi says what each does.
   Checksums are ISA-L's, by the function that Python calls. */

#ifndef METAQ_CORE_H
#define METAQ_CORE_H

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

extern PyType_Spec intake_spec;
extern PyTypeObject span_type;
PyObject *alike_frames(PyObject *module, PyObject *args);
PyObject *branch_requests(PyObject *module, PyObject *args);
PyObject *plain_messages(PyObject *module, PyObject *args);
PyObject *plain_results(PyObject *module, PyObject *args);
PyObject *stamp_frames(PyObject *module, PyObject *args);

#endif
