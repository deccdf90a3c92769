// Reads jobs from stdin, fuses all of them in one batch on a pool of argv[1] std::threads (examples/cpp/pool.hpp), and
// writes the results to stdout. A job is five int64 (rows, columns, dtype, arithmetic, terms), the weight, and for each
// term three int64 (dtype, rank or 0 for a full one, strength's f32 bits), A and B or the full matrix.
#include <ltx2c.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>

#include "pool.hpp"

static void Read(void *to, size_t bytes) {
    if (std::fread(to, 1, bytes, stdin) != bytes) std::exit(3);
}

static std::list<std::vector<char>> matrices;

static ltx2c_matrix ReadMatrix(size_t rows, size_t columns, int64_t dtype) {
    const size_t stride = columns * (dtype == LTX2C_F32 ? 4 : 2);
    matrices.emplace_back(rows * stride);
    Read(matrices.back().data(), rows * stride);
    return {matrices.back().data(), static_cast<ptrdiff_t>(stride), static_cast<ltx2c_dtype>(dtype)};
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::vector<ltx2c_job> jobs;
    std::list<std::vector<ltx2c_term>> terms;
    int64_t count, head[5], part[3];
    for (Read(&count, sizeof count); count > 0; count--) {
        Read(head, sizeof head);
        ltx2c_job job{};
        job.rows = static_cast<size_t>(head[0]);
        job.columns = static_cast<size_t>(head[1]);
        job.weight = ReadMatrix(job.rows, job.columns, head[2]);
        job.arithmetic = static_cast<ltx2c_arithmetic>(head[3]);
        job.out = const_cast<void *>(job.weight.data);
        job.out_stride = job.weight.stride;
        terms.emplace_back();
        for (int64_t t = 0; t < head[4]; t++) {
            Read(part, sizeof part);
            ltx2c_term term{};
            term.rank = static_cast<size_t>(part[1]);
            std::memcpy(&term.strength, &part[2], sizeof term.strength);
            if (term.rank) {
                term.a = ReadMatrix(term.rank, job.columns, part[0]);
                term.b = ReadMatrix(job.rows, term.rank, part[0]);
            } else {
                term.full = ReadMatrix(job.rows, job.columns, part[0]);
            }
            terms.back().push_back(term);
        }
        job.terms = terms.back().data();
        job.term_count = terms.back().size();
        jobs.push_back(job);
    }
    Pool pool(std::strtoul(argv[1], nullptr, 10));
    const int status = FuseOn(pool, jobs);
    if (status != LTX2C_OK) {
        std::fprintf(stderr, "%s\n", ltx2c_status_text(status));
        return 1;
    }
    for (const ltx2c_job &job : jobs) {
        const size_t bytes = job.rows * static_cast<size_t>(job.out_stride);
        if (std::fwrite(job.out, 1, bytes, stdout) != bytes) return 3;
    }
    return 0;
}
