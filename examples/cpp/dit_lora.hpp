// vllm.cpp fuses LoRA adapters tensor by tensor while it loads a diffusion transformer, through one function. Here is a
// function of that signature over ltx2c.h: the same bytes, because vllm.cpp's arithmetic is ltx2c's contract. Types
// of vllm.cpp are stood in for by what the call needs of them; ltx2c was not run inside vllm.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace vt {
enum class DType { kBF16, kF32, kF16 };
}

// One module of an adapter: A [rank, cols] and B [rows, rank], contiguous.
struct DitLoraPair {
    const void *a = nullptr, *b = nullptr;
    vt::DType dtype = vt::DType::kBF16;
    int64_t rank = 0;
};

struct DitLoraAdapter {
    std::string path;
    double strength = 1.0;
    std::unordered_map<std::string, DitLoraPair> pairs;  // by target
};

// Fuses every adapter that has `target` into the weight in `buffer` [rows, cols], in the order given. Returns whether any
// had it; else the buffer is as it was. Throws std::invalid_argument, before a byte is written, for what cannot be: a
// buffer of another size, F16 factors (vllm.cpp takes none), NULL, no rank; std::bad_alloc.
bool DitFuseLoraIntoTensor(const std::vector<DitLoraAdapter> &adapters, const std::string &target, vt::DType dtype,
                           int64_t rows, int64_t cols, uint8_t *buffer, size_t buffer_bytes);
