/* The kernels of this build, and which of them run on this CPU. */
#ifndef LTX2C_DISPATCH_H
#define LTX2C_DISPATCH_H

#include "kernels.def"

static const ltx2c_kernel *const ltx2c_kernels[] = {
#define LTX2C_LISTING
#include "kernels.def"
#undef LTX2C_LISTING
};

enum { LTX2C_KERNEL_COUNT = sizeof ltx2c_kernels / sizeof *ltx2c_kernels };

/* The fastest kernel that runs here. */
static inline const ltx2c_kernel *ltx2c_best_kernel(void) {
    size_t k = LTX2C_KERNEL_COUNT;
    while (--k && ltx2c_kernels[k]->unsupported()) continue;
    return ltx2c_kernels[k];
}

#endif
