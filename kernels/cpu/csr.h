/* CSR rows where the kernels of dense rows take a matrix. */

#ifndef HPCSGD_CSR_H
#define HPCSGD_CSR_H

#include <stdint.h>

typedef struct {
    const int64_t *indptr;
    const void *indices, *data;
} csr_rows;

#endif
