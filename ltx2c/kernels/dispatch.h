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

#endif
