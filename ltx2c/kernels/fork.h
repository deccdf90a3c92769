/* GCC's OpenMP runtime hangs in a forked child that inherits its pool's bookkeeping without its threads. So the pool is
 * dissolved before each fork; parent and child make a new one when they next need it. */
#ifndef LTX2C_FORK_H
#define LTX2C_FORK_H

#ifdef LTX2C_OMP_PAUSE
#include <omp.h>
#include <pthread.h>

#include "threads.h"

static void ltx2c_before_fork(void) {
    omp_pause_resource_all(omp_pause_soft);
    __atomic_fetch_add(&ltx2c_forks, 1, __ATOMIC_RELAXED);
}

static inline int ltx2c_survive_forks(void) { return pthread_atfork(ltx2c_before_fork, NULL, NULL); }
#else
static inline int ltx2c_survive_forks(void) { return 0; }
#endif

#endif
