/* Every kernel of this build on a sweep of shapes and values, against the serial kernel byte for byte.
 *
 * Prints a checksum of all results: the same on every machine, because the inputs are too. ci/sanitize.sh runs it under
 * sanitizers, ci/neon.sh on aarch64. Every array is its own allocation of exactly its size, so that a read or write one
 * element too far is seen; in half of the cases it begins at an odd address. Without arguments the whole sweep; with
 * one, that many cases of it.
 */
#define LTX2C_IMPLEMENTATION
#include <ltx2c.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

enum { CASES = 600, MOST_TERMS = 3, JOBS = 3, THREADS = 2 };

static uint64_t state;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static uint32_t below(uint32_t limit) { return draw() % limit; }

/* Draws are statements of their own: C leaves open in which order a compiler evaluates operands. */
static uint32_t choose(const uint32_t *from, uint32_t count) { return from[below(count)]; }

/* ---- Values ------------------------------------------------------------------------------------------------------ */

enum { TRAINED, ZEROS = 4, ANY = 5, KINDS = 6, FIRST_EXACT = 6, EXACT_KINDS = 6 };

/* One f32 value of a kind: trained-like, wide, round the guards' lower and upper bounds, zeros, any bits. Then those of
 * one exponent and few mantissas, whose sums cancel to a single unit or come back from beyond the largest value: pairs
 * of them lie on either side of each bound. */
static float value(uint32_t kind) {
    static const uint32_t lowest[] = {118, 60, 55, 185}, spread[] = {6, 130, 20, 10};
    static const uint32_t exponents[EXACT_KINDS] = {59, 60, 70, 71, 190, 191};
    const uint32_t step = kind < FIRST_EXACT + 4 ? 1 : 42; /* mantissas of 128 to 131, or to 254 */
    if (kind == ZEROS) return below(8) ? ltx2c_float(draw() << 31) : 1.5f;
    const uint32_t sign = below(2) << 31;
    if (kind >= FIRST_EXACT) return ltx2c_float(sign | exponents[kind - FIRST_EXACT] << 23 | below(4) * step << 16);
    const uint32_t fraction = draw();
    if (kind == ANY) return ltx2c_float(sign | fraction);
    return ltx2c_float(sign | (lowest[kind] + below(spread[kind])) << 23 | (fraction & 0x7fffff));
}

static size_t lead; /* bytes in front of every array: 0, or 1 in cases that begin at odd addresses */

static char *allocate(size_t bytes) {
    char *memory = malloc(lead + bytes);
    if (!memory) exit(3);
    return memory + lead;
}

static void release(const void *array) { free((char *)array - lead); }

static ltx2c_matrix draw_matrix(size_t rows, size_t columns, ltx2c_dtype dtype, uint32_t kind) {
    const size_t stride = columns * ltx2c_itemsize(dtype);
    char *data = allocate(rows * stride);
    for (size_t i = 0; i < rows * columns; i++) {
        const float drawn = value(kind);
        const uint16_t half = dtype == LTX2C_F16 ? ltx2c_to_f16(drawn) : (uint16_t)(ltx2c_bits(drawn) >> 16);
        memcpy(data + i * ltx2c_itemsize(dtype), dtype == LTX2C_F32 ? (const void *)&drawn : &half,
               ltx2c_itemsize(dtype));
    }
    return (ltx2c_matrix){data, (ptrdiff_t)stride, dtype};
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

typedef struct {
    ltx2c_job jobs[JOBS];
    ltx2c_term terms[JOBS][MOST_TERMS];
} problem;

/* What most weights are: bf16, one term of low rank, LTX, factors that a dot product sums exactly or nearly so. */
static void draw_plain(ltx2c_job *job, ltx2c_term *term) {
    const uint32_t near = FIRST_EXACT + below(EXACT_KINDS / 2) * 2; /* one bound's kinds */
    const int trained = !below(2);
    job->weight = draw_matrix(job->rows, job->columns, LTX2C_BF16, below(KINDS));
    job->term_count = 1;
    term->a = draw_matrix(term->rank, job->columns, LTX2C_BF16, trained ? TRAINED : near + below(2));
    term->b = draw_matrix(job->rows, term->rank, LTX2C_BF16, trained ? TRAINED : near + below(2));
}

/* Any dtypes, arithmetic, values and terms. */
static void draw_mixed(ltx2c_job *job, ltx2c_term *terms) {
    job->arithmetic = (ltx2c_arithmetic)below(3);
    const int wide = job->arithmetic == LTX2C_ARITHMETIC_LTX_WIDE;
    const ltx2c_dtype stored = wide ? LTX2C_F32 : (ltx2c_dtype)below(3);
    job->weight = draw_matrix(job->rows, job->columns, stored, below(KINDS));
    job->term_count = 1 + below(MOST_TERMS);
    for (size_t t = 0; t < job->term_count; t++) {
        ltx2c_term *term = &terms[t];
        const ltx2c_dtype dtype = (ltx2c_dtype)(below(6) % 4 % 3); /* bf16 half of the time */
        if (!below(4)) {
            term->full = draw_matrix(job->rows, job->columns, dtype, below(KINDS));
            term->rank = 0;
            continue;
        }
        term->a = draw_matrix(term->rank, job->columns, dtype, below(KINDS + EXACT_KINDS));
        term->b = draw_matrix(job->rows, term->rank, dtype, below(KINDS + EXACT_KINDS));
    }
}

static void draw_problem(problem *p) {
    static const uint32_t rows[] = {1, 2, 5, 6, 7, 13, 60, 65, 254};
    static const uint32_t columns[] = {1, 15, 16, 31, 63, 64, 65, 127, 513, 700};
    static const uint32_t ranks[] = {1, 2, 3, 5, 16, 31, 32, 33, 65, 129, 200};
    for (int j = 0; j < JOBS; j++) {
        ltx2c_job *job = &p->jobs[j];
        *job = (ltx2c_job){.terms = p->terms[j]};
        job->rows = choose(rows, 9);
        job->columns = choose(columns, 10);
        for (size_t t = 0; t < MOST_TERMS; t++) {
            p->terms[j][t] = (ltx2c_term){.strength = (float)((int)below(17) - 8) * 0.25f};
            p->terms[j][t].rank = choose(ranks, 11);
        }
        if (below(2))
            draw_plain(job, p->terms[j]);
        else
            draw_mixed(job, p->terms[j]);
        job->out_stride = job->weight.stride;
    }
}

static void free_problem(problem *p) {
    for (int j = 0; j < JOBS; j++) {
        release(p->jobs[j].weight.data);
        for (size_t t = 0; t < p->jobs[j].term_count; t++) {
            const ltx2c_term *term = &p->terms[j][t];
            if (term->full.data) {
                release(term->full.data);
                continue;
            }
            release(term->a.data);
            release(term->b.data);
        }
    }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

typedef struct {
    ltx2c_batch *batch;
    size_t worker;
} seat;

static void *work(void *given) {
    const seat *s = given;
    while (ltx2c_run_block(s->batch, s->worker)) continue;
    return NULL;
}

/* Fuses a problem's jobs together, each into memory of its own that begins with the weight or, in place, is it. */
static void fuse(const ltx2c_kernel *kernel, problem *p, void **outs, int in_place) {
    ltx2c_job jobs[JOBS];
    ltx2c_batch batch;
    pthread_t threads[THREADS];
    seat seats[THREADS];
    for (int j = 0; j < JOBS; j++) {
        jobs[j] = p->jobs[j];
        const size_t bytes = jobs[j].rows * (size_t)jobs[j].out_stride;
        jobs[j].out = outs[j] = allocate(bytes);
        if (in_place) jobs[j].weight.data = memcpy(outs[j], jobs[j].weight.data, bytes);
    }
    if (ltx2c_open_batch(&batch, kernel, jobs, JOBS, THREADS)) exit(3);
    for (size_t i = 0; i < batch.worker_count; i++) {
        seats[i] = (seat){&batch, i};
        if (pthread_create(&threads[i], NULL, work, &seats[i])) exit(3);
    }
    for (size_t i = 0; i < batch.worker_count; i++) pthread_join(threads[i], NULL);
    ltx2c_close_batch(&batch);
    for (int j = 0; j < JOBS; j++) p->jobs[j].nonfinite = jobs[j].nonfinite;
}

static uint64_t checksum(uint64_t sum, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return sum;
}

int main(int argc, char **argv) {
    const int cases = argc > 1 ? atoi(argv[1]) : CASES;
    uint64_t sum = 14695981039346656037u;
    for (int number = 0; number < cases; number++) {
        problem p;
        state = (uint64_t)number;
        lead = number >> 1 & 1;
        draw_problem(&p);
        void *expected[JOBS], *actual[JOBS];
        uint64_t nonfinite[JOBS];
        fuse(&ltx2c_serial, &p, expected, 0);
        for (int j = 0; j < JOBS; j++) {
            nonfinite[j] = p.jobs[j].nonfinite;
            sum = checksum(sum, expected[j], p.jobs[j].rows * (size_t)p.jobs[j].out_stride);
            sum = checksum(sum, &nonfinite[j], sizeof nonfinite[j]);
        }
        for (int k = 1; k < LTX2C_KERNEL_COUNT; k++) {
            if (ltx2c_kernels[k]->unsupported()) continue;
            fuse(ltx2c_kernels[k], &p, actual, number & 1);
            for (int j = 0; j < JOBS; j++) {
                if (memcmp(actual[j], expected[j], p.jobs[j].rows * (size_t)p.jobs[j].out_stride) ||
                    nonfinite[j] != p.jobs[j].nonfinite) {
                    fprintf(stderr, "case %d, job %d: %s differs from serial\n", number, j, ltx2c_kernels[k]->name);
                    return 1;
                }
                release(actual[j]);
            }
        }
        for (int j = 0; j < JOBS; j++) release(expected[j]);
        free_problem(&p);
    }
    for (int k = 0; k < LTX2C_KERNEL_COUNT; k++)
        fprintf(stderr, "%s: %s\n", ltx2c_kernels[k]->name,
                ltx2c_kernels[k]->unsupported() ? ltx2c_kernels[k]->unsupported() : "checked");
    printf("%d cases, checksum %016" PRIx64 "\n", cases, sum);
    return 0;
}
