/* The calls of ltx2c.h: what the unit that defines LTX2C_IMPLEMENTATION compiles.
 *
 * It must give the same bytes under a caller's own flags, so nothing here depends on them: multiply and add may not
 * become one instruction (GCC contracts even intrinsics where nothing forbids it), and warnings that others ask for do
 * not end their build.
 */
#ifndef LTX2C_IMPLEMENTATION_H
#define LTX2C_IMPLEMENTATION_H

#define LTX2C_API

#if defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || __FINITE_MATH_ONLY__
#error "ltx2c computes exact bytes: compile without parts of -ffast-math"
#endif

#if defined(__clang__)
#pragma float_control(push)
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#if defined(__cplusplus) && defined(__clang__)
#pragma GCC diagnostic ignored "-Wc++20-designator"
#pragma GCC diagnostic ignored "-Wc99-extensions"
#elif defined(__cplusplus) && __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Wc++20-extensions"
#endif
#ifndef __clang__ /* in C++ GCC takes its own headers' _mm512_undefined_ps() for a mistake */
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

#include "check.h"
#include "dispatch.h"
#include "driver.h"
#include "threads.h"

/* More have never been seen, and with it no size that the driver computes overflows. */
enum { LTX2C_MOST_WORKERS = 4096 };

const char *ltx2c_status_text(int status) {
    static const char *const texts[] = {
        "done",
        "not enough memory",
        "a pointer is NULL that must not be",
        "no such dtype or arithmetic, or not for this weight",
        "no terms, a rank of 0, a stride smaller than a row, or a size beyond all memory",
        "no threads",
    };
    return status <= LTX2C_OK && status >= LTX2C_BAD_THREADS ? texts[-status] : "no such status";
}

const ltx2c_kernel *ltx2c_best_kernel(void) {
    size_t k = LTX2C_KERNEL_COUNT;
    while (--k && ltx2c_kernels[k]->unsupported()) continue;
    return ltx2c_kernels[k];
}

int ltx2c_open_batch(ltx2c_batch *batch, const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count,
                     size_t workers) {
    if (!batch || !kernel) return LTX2C_BAD_POINTER;
    if (!workers) return LTX2C_BAD_THREADS;
    const int status = ltx2c_check_jobs(jobs, job_count);
    if (status) return status;
    return ltx2c_plan_batch(batch, kernel, jobs, job_count, ltx2c_min(workers, LTX2C_MOST_WORKERS)) ? LTX2C_NO_MEMORY
                                                                                                    : LTX2C_OK;
}

int ltx2c_fuse(ltx2c_job *job, unsigned threads) {
    ltx2c_batch batch;
    const int status = job ? ltx2c_open_batch(&batch, ltx2c_best_kernel(), job, 1, threads) : LTX2C_BAD_POINTER;
    if (status) return status;
#ifdef _OPENMP
    const int workers = ltx2c_obtainable_threads((int)batch.worker_count);
#pragma omp parallel for schedule(static, 1) num_threads(workers)
    for (int worker = 0; worker < workers; worker++)
        while (ltx2c_run_block(&batch, (size_t)worker)) continue;
#else
    while (ltx2c_run_block(&batch, 0)) continue;
#endif
    ltx2c_close_batch(&batch);
    return LTX2C_OK;
}

#pragma GCC diagnostic pop
#if defined(__clang__)
#pragma float_control(pop)
#else
#pragma GCC pop_options
#endif

#endif
