/* Every kind of job that cannot be, and those that are empty: the status of each, and that nothing was written. */
#include <ltx2c.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 7, COLUMNS = 20, RANK = 3 };

static uint16_t weight[ROWS][COLUMNS], a[RANK][COLUMNS], b[ROWS][RANK], out[ROWS][COLUMNS];
static float wide[ROWS][COLUMNS];
static ltx2c_term term;
static ltx2c_job job;
static int wrong;

static void reset(void) {
    memset(out, 0xa5, sizeof out);
    memset(&term, 0, sizeof term);
    memset(&job, 0, sizeof job);
    term.a = (ltx2c_matrix){a, sizeof a[0], LTX2C_BF16};
    term.b = (ltx2c_matrix){b, sizeof b[0], LTX2C_BF16};
    term.rank = RANK;
    term.strength = 1.0f;
    job.weight = (ltx2c_matrix){weight, sizeof weight[0], LTX2C_BF16};
    job.out = out;
    job.out_stride = sizeof out[0];
    job.rows = ROWS;
    job.columns = COLUMNS;
    job.terms = &term;
    job.term_count = 1;
}

static void full(void) {
    term.full = (ltx2c_matrix){wide, sizeof wide[0], LTX2C_F32};
    term.rank = 0;
}

/* The last rows of a product with one row more. */
static void kronecker(void) {
    term.kronecker = (ltx2c_kronecker){wide[0], wide[1], 2, 5, 4, 4, 1};
    term.rank = 0;
}

static void expect(const char *what, int expected, int actual, int written) {
    int kept = 1;
    for (size_t i = 0; i < sizeof out; i++) kept &= ((unsigned char *)out)[i] == 0xa5;
    if (actual != expected || kept == written) {
        printf("%s: %d (%s), not %d%s\n", what, actual, ltx2c_status_text(actual), expected,
               kept == written ? "; written or not" : "");
        wrong = 1;
    }
    reset();
}

#define REFUSED(status, change)                                                                                        \
    do {                                                                                                               \
        change;                                                                                                        \
        expect(#change, status, ltx2c_fuse(&job, 2), 0);                                                               \
    } while (0)

int main(void) {
    ltx2c_batch batch;
    const ltx2c_kernel *kernel = ltx2c_best_kernel();
    reset();
    expect("sound", LTX2C_OK, ltx2c_fuse(&job, 2), 1);
    full();
    expect("sound, full", LTX2C_OK, ltx2c_fuse(&job, 2), 1);
    kronecker();
    expect("sound, Kronecker", LTX2C_OK, ltx2c_fuse(&job, 2), 1);

    REFUSED(LTX2C_BAD_POINTER, job.weight.data = NULL);
    REFUSED(LTX2C_BAD_POINTER, job.out = NULL);
    REFUSED(LTX2C_BAD_POINTER, job.terms = NULL);
    REFUSED(LTX2C_BAD_POINTER, term.a.data = NULL);
    REFUSED(LTX2C_BAD_POINTER, term.b.data = NULL);
    REFUSED(LTX2C_BAD_DTYPE, job.weight.dtype = (ltx2c_dtype)3);
    REFUSED(LTX2C_BAD_DTYPE, term.a.dtype = (ltx2c_dtype)3);
    REFUSED(LTX2C_BAD_DTYPE, term.b.dtype = (ltx2c_dtype)(-1));
    REFUSED(LTX2C_BAD_DTYPE, full(); term.full.dtype = (ltx2c_dtype)3);
    REFUSED(LTX2C_BAD_DTYPE, job.arithmetic = (ltx2c_arithmetic)3);
    REFUSED(LTX2C_BAD_DTYPE, job.arithmetic = LTX2C_ARITHMETIC_LTX_WIDE);
    REFUSED(LTX2C_BAD_SIZE, job.term_count = 0);
    REFUSED(LTX2C_BAD_SIZE, term.rank = 0);
    REFUSED(LTX2C_BAD_SIZE, term.rank = (size_t)1 << 31);
    REFUSED(LTX2C_BAD_SIZE, job.rows = (size_t)1 << 31);
    REFUSED(LTX2C_BAD_SIZE, job.columns = (size_t)1 << 31);
    REFUSED(LTX2C_BAD_SIZE, job.columns = SIZE_MAX / 2 + 2);
    REFUSED(LTX2C_BAD_SIZE, job.weight.stride--);
    REFUSED(LTX2C_BAD_SIZE, job.weight.stride = -job.weight.stride);
    REFUSED(LTX2C_BAD_SIZE, job.weight.stride = PTRDIFF_MAX / ROWS + 1);
    REFUSED(LTX2C_BAD_SIZE, job.out_stride--);
    REFUSED(LTX2C_BAD_SIZE, term.a.stride--);
    REFUSED(LTX2C_BAD_SIZE, term.b.stride = 0);
    REFUSED(LTX2C_BAD_SIZE, full(); term.full.stride--);
    REFUSED(LTX2C_BAD_POINTER, kronecker(); term.kronecker.two = NULL);
    REFUSED(LTX2C_BAD_SIZE, kronecker(); term.kronecker.first = 2);
    REFUSED(LTX2C_BAD_SIZE, kronecker(); term.kronecker.first = SIZE_MAX);
    REFUSED(LTX2C_BAD_SIZE, kronecker(); term.kronecker.two_columns = 5);
    REFUSED(LTX2C_BAD_SIZE, kronecker(); term.kronecker.one_rows = 0);
    REFUSED(LTX2C_BAD_SIZE, kronecker(); term.kronecker.two_rows = (size_t)1 << 31);

    expect("no job", LTX2C_BAD_POINTER, ltx2c_fuse(NULL, 2), 0);
    expect("no threads", LTX2C_BAD_THREADS, ltx2c_fuse(&job, 0), 0);
    expect("no workers", LTX2C_BAD_THREADS, ltx2c_open_batch(&batch, kernel, &job, 1, 0), 0);
    expect("no batch", LTX2C_BAD_POINTER, ltx2c_open_batch(NULL, kernel, &job, 1, 1), 0);
    expect("no kernel", LTX2C_BAD_POINTER, ltx2c_open_batch(&batch, NULL, &job, 1, 1), 0);
    expect("jobs at NULL", LTX2C_BAD_POINTER, ltx2c_open_batch(&batch, kernel, NULL, 1, 1), 0);
    ltx2c_job jobs[2] = {job, job};
    jobs[1].rows = ROWS;
    jobs[1].term_count = 0;
    expect("the second job", LTX2C_BAD_SIZE, ltx2c_open_batch(&batch, kernel, jobs, 2, 1), 0);

    job.rows = 0;
    job.weight.data = job.out = NULL;
    job.nonfinite = 5;
    int status = ltx2c_fuse(&job, 2);
    wrong |= job.nonfinite != 0;
    expect("no rows", LTX2C_OK, status, 0);
    job.columns = 0;
    term.a.data = NULL;
    expect("no columns", LTX2C_OK, ltx2c_fuse(&job, 2), 0);

    status = ltx2c_open_batch(&batch, kernel, NULL, 0, 3);
    wrong |= ltx2c_run_block(&batch, 0);
    ltx2c_close_batch(&batch);
    expect("no jobs", LTX2C_OK, status, 0);

    /* One worker may do all, and a call too many does nothing. */
    wrong |= ltx2c_open_batch(&batch, kernel, &job, 1, 1000000) != LTX2C_OK || batch.worker_count > batch.blocks;
    for (size_t block = 0; block < batch.blocks; block++) wrong |= !ltx2c_run_block(&batch, 0);
    wrong |= ltx2c_run_block(&batch, 0) || ltx2c_run_block(&batch, 0);
    ltx2c_close_batch(&batch);
    expect("a batch", LTX2C_OK, LTX2C_OK, 1);
    return wrong;
}
