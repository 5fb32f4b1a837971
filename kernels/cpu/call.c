/* invoke(function, ...): a kernel called with arrays, whole numbers and None as they are.

   The kernels take pointers and 64-bit integers alone, so one door serves them all. What
   ctypes does for each argument in the interpreter takes longer than a kernel on a few
   rows; this takes less than a microsecond for all of them. Types and shapes are for the
   caller to know, as with ctypes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define MOST 13

typedef int64_t word;
#define W1 word
#define W2 W1, W1
#define W4 W2, W2
#define W8 W4, W4
#define W13 W8, W4, W1

/* A kernel takes as many as it takes: what is passed beyond stays where it is. */
typedef void (*kernel)(W13);

static int fill(PyObject *given, word *value, Py_buffer *view)
{
    view->obj = NULL;
    if (given == Py_None) {
        *value = 0;
    } else if (PyLong_Check(given)) {
        *value = (word)PyLong_AsUnsignedLongLong(given);
        if (PyErr_Occurred()) { /* below zero */
            PyErr_Clear();
            *value = (word)PyLong_AsLongLong(given);
        }
        return PyErr_Occurred() ? -1 : 0;
    } else {
        if (PyObject_GetBuffer(given, view, PyBUF_STRIDES) < 0)
            return -1;
        *value = (word)(intptr_t)view->buf;
    }
    return 0;
}

static PyObject *invoke(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    word values[MOST + 1] = {0};
    Py_buffer views[MOST + 1];
    Py_ssize_t filled = 0;
    (void)self;
    if (count < 1 || count > MOST + 1)
        return PyErr_Format(PyExc_TypeError, "invoke takes a function and up to %d"
                            " arguments, not %zd", MOST, count - 1);
    while (filled < count && fill(given[filled], &values[filled], &views[filled]) == 0)
        filled++;
    if (filled == count) {
        word *v = values + 1;
        kernel call = (kernel)(intptr_t)values[0];
        Py_BEGIN_ALLOW_THREADS
        call(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11],
             v[12]);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; i < filled; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
    if (filled < count)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"invoke", (PyCFunction)(void (*)(void))invoke, METH_FASTCALL,
     "invoke(function, ...): call the kernel at this address."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_call", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__call(void)
{
    if (sizeof(void *) != sizeof(word)) {
        PyErr_SetString(PyExc_ImportError, "pointers of 64 bits are needed");
        return NULL;
    }
    return PyModule_Create(&module);
}
