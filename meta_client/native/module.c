/* The module meta_client._core. */

#include "core.h"

static PyMethodDef core_methods[] = {
    {"alike_frames", alike_frames, METH_VARARGS, NULL},
    {"branch_requests", branch_requests, METH_VARARGS, NULL},
    {"plain_messages", plain_messages, METH_VARARGS, NULL},
    {"plain_results", plain_results, METH_VARARGS, NULL},
    {"stamp_frames", stamp_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int core_exec(PyObject *module)
{
    PyObject *type = PyType_Ready(&span_type) < 0 ? NULL : PyType_FromModuleAndSpec(module, &intake_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed < 0 ? -1 : PyModule_AddIntConstant(module, "INTERFACE", 6);
}

static PyModuleDef_Slot core_slots[] = {{Py_mod_exec, core_exec}, {0, NULL}};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT, "meta_client._core", NULL, 0, core_methods, core_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
