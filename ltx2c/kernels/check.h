/* Whether a caller's jobs can be: pointers, dtypes, sizes. Python checks its arrays itself. */
#ifndef LTX2C_CHECK_H
#define LTX2C_CHECK_H

#include "core.h"

/* With every extent below this no size that the driver computes overflows. */
#define LTX2C_MOST_EXTENT ((size_t)INT32_MAX)

/* Whether an enumeration's number is in 0 to `last`. Read as bytes: C++ may assume that no other value is ever stored. */
static int ltx2c_is_named(const void *enumeration, unsigned last) {
    unsigned number;
    memcpy(&number, enumeration, sizeof number);
    return number <= last;
}

static int ltx2c_check_rows(const void *data, ptrdiff_t stride, ltx2c_dtype dtype, size_t rows, size_t columns) {
    if (!rows || !columns) return LTX2C_OK;
    if (!data) return LTX2C_BAD_POINTER;
    const ptrdiff_t bytes = (ptrdiff_t)(columns * ltx2c_itemsize(dtype));
    if (stride < bytes || stride > PTRDIFF_MAX / (ptrdiff_t)rows) return LTX2C_BAD_SIZE;
    return LTX2C_OK;
}

static int ltx2c_check_matrix(const ltx2c_matrix *matrix, size_t rows, size_t columns) {
    if (!ltx2c_is_named(&matrix->dtype, LTX2C_F16)) return LTX2C_BAD_DTYPE;
    return ltx2c_check_rows(matrix->data, matrix->stride, matrix->dtype, rows, columns);
}

static int ltx2c_check_kronecker(const ltx2c_kronecker *k, size_t rows, size_t columns) {
    const size_t extents[] = {k->one_rows, k->one_columns, k->two_rows, k->two_columns};
    if (!k->two) return LTX2C_BAD_POINTER;
    for (int i = 0; i < 4; i++)
        if (!extents[i] || extents[i] > LTX2C_MOST_EXTENT) return LTX2C_BAD_SIZE;
    const size_t all = k->one_rows * k->two_rows;
    return columns == k->one_columns * k->two_columns && k->first <= all && rows <= all - k->first ? LTX2C_OK
                                                                                                  : LTX2C_BAD_SIZE;
}

/* Adds the term's rank to *ranks. */
static int ltx2c_check_term(const ltx2c_job *job, const ltx2c_term *term, size_t *ranks) {
    if (term->full.data) return ltx2c_check_matrix(&term->full, job->rows, job->columns);
    if (term->kronecker.one) return ltx2c_check_kronecker(&term->kronecker, job->rows, job->columns);
    if (!term->rank || term->rank > LTX2C_MOST_EXTENT - *ranks) return LTX2C_BAD_SIZE;
    *ranks += term->rank;
    const int a = ltx2c_check_matrix(&term->a, job->rows ? term->rank : 0, job->columns);
    return a ? a : ltx2c_check_matrix(&term->b, job->columns ? job->rows : 0, term->rank);
}

static int ltx2c_check_job(const ltx2c_job *job) {
    size_t ranks = 0;
    if (!ltx2c_is_named(&job->arithmetic, LTX2C_ARITHMETIC_LTX_WIDE)) return LTX2C_BAD_DTYPE;
    if (job->rows > LTX2C_MOST_EXTENT || job->columns > LTX2C_MOST_EXTENT) return LTX2C_BAD_SIZE;
    if (!job->term_count || job->term_count > LTX2C_MOST_EXTENT) return LTX2C_BAD_SIZE;
    if (!job->terms) return LTX2C_BAD_POINTER;
    int status = ltx2c_check_matrix(&job->weight, job->rows, job->columns);
    if (!status && job->arithmetic == LTX2C_ARITHMETIC_LTX_WIDE && job->weight.dtype != LTX2C_F32)
        status = LTX2C_BAD_DTYPE;
    if (!status) status = ltx2c_check_rows(job->out, job->out_stride, job->weight.dtype, job->rows, job->columns);
    for (size_t t = 0; !status && t < job->term_count; t++) status = ltx2c_check_term(job, &job->terms[t], &ranks);
    return status;
}

static int ltx2c_check_jobs(const ltx2c_job *jobs, size_t job_count) {
    if (job_count && !jobs) return LTX2C_BAD_POINTER;
    int status = LTX2C_OK;
    for (size_t j = 0; !status && j < job_count; j++) status = ltx2c_check_job(&jobs[j]);
    return status;
}

#endif
