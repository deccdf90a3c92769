/* Reads W, A and B (bf16, the sizes in argv) from stdin, fuses, and writes the result to stdout. */
#define LTX2C_IMPLEMENTATION
#include <ltx2c.h>

#include <stdio.h>
#include <stdlib.h>

static uint16_t *read_matrix(size_t rows, size_t columns) {
    uint16_t *values = malloc(rows * columns * sizeof *values);
    if (!values || fread(values, sizeof *values, rows * columns, stdin) != rows * columns) exit(3);
    return values;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const size_t rows = strtoul(argv[1], NULL, 10), columns = strtoul(argv[2], NULL, 10);
    const size_t rank = strtoul(argv[3], NULL, 10), two = sizeof(uint16_t);
    uint16_t *w = read_matrix(rows, columns), *a = read_matrix(rank, columns), *b = read_matrix(rows, rank);
    ltx2c_term term = {
        .a = {a, (ptrdiff_t)(columns * two), LTX2C_BF16},
        .b = {b, (ptrdiff_t)(rank * two), LTX2C_BF16},
        .rank = rank,
        .strength = strtof(argv[4], NULL),
    };
    ltx2c_job job = {
        .weight = {w, (ptrdiff_t)(columns * two), LTX2C_BF16},
        .out = w,
        .out_stride = (ptrdiff_t)(columns * two),
        .rows = rows,
        .columns = columns,
        .terms = &term,
        .term_count = 1,
    };
    if (ltx2c_fuse(&job, (unsigned)strtoul(argv[5], NULL, 10))) return 1;
    return fwrite(w, two, rows * columns, stdout) != rows * columns;
}
