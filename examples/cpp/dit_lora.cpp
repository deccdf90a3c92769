#include "dit_lora.hpp"

#include <new>
#include <stdexcept>
#include <thread>

#include "pool.hpp"

namespace {

ltx2c_dtype Stored(vt::DType dtype) {
    switch (dtype) {
        case vt::DType::kBF16: return LTX2C_BF16;
        case vt::DType::kF32: return LTX2C_F32;
        case vt::DType::kF16: return LTX2C_F16;
    }
    throw std::invalid_argument("no such dtype");
}

ltx2c_matrix Contiguous(const void *data, int64_t columns, vt::DType dtype) {
    const int64_t itemsize = dtype == vt::DType::kF32 ? 4 : 2;
    return {data, static_cast<ptrdiff_t>(columns * itemsize), Stored(dtype)};
}

ltx2c_term Term(const DitLoraPair &pair, double strength, int64_t cols) {
    if (pair.dtype == vt::DType::kF16) throw std::invalid_argument("F16 factors");
    if (pair.rank <= 0) throw std::invalid_argument("no rank");
    ltx2c_term term{};
    term.a = Contiguous(pair.a, cols, pair.dtype);
    term.b = Contiguous(pair.b, pair.rank, pair.dtype);
    term.rank = static_cast<size_t>(pair.rank);
    term.strength = static_cast<float>(strength);
    return term;
}

}  // namespace

bool DitFuseLoraIntoTensor(const std::vector<DitLoraAdapter> &adapters, const std::string &target, vt::DType dtype,
                           int64_t rows, int64_t cols, uint8_t *buffer, size_t buffer_bytes) {
    constexpr int64_t kMost = INT32_MAX;
    if (rows < 0 || cols < 0 || rows > kMost || cols > kMost) throw std::invalid_argument("rows or cols");
    const ltx2c_matrix weight = Contiguous(buffer, cols, dtype);
    if (buffer_bytes != static_cast<size_t>(rows) * static_cast<size_t>(weight.stride))
        throw std::invalid_argument("buffer_bytes");

    std::vector<ltx2c_term> terms;
    for (const DitLoraAdapter &adapter : adapters) {
        const auto found = adapter.pairs.find(target);
        if (found != adapter.pairs.end()) terms.push_back(Term(found->second, adapter.strength, cols));
    }
    if (terms.empty()) return false;

    std::vector<ltx2c_job> jobs(1);
    jobs[0].weight = weight;
    jobs[0].out = buffer;
    jobs[0].out_stride = weight.stride;
    jobs[0].rows = static_cast<size_t>(rows);
    jobs[0].columns = static_cast<size_t>(cols);
    jobs[0].terms = terms.data();
    jobs[0].term_count = terms.size();

    static Pool pool(std::thread::hardware_concurrency());
    const int status = FuseOn(pool, jobs);
    if (status == LTX2C_NO_MEMORY) throw std::bad_alloc();
    if (status != LTX2C_OK) throw std::invalid_argument(ltx2c_status_text(status));
    return true;
}
