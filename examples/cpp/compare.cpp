// DitFuseLoraIntoTensor over ltx2c beside the loop that it replaces, on the same cores: seconds of each, in alternation, and
// whether the bytes are equal.   ./compare [rows rank cols]
//
// The loop is a stand-in written from the contract, not vllm.cpp's code: rows are shared out to threads, for each row
// the products of one k are added to the row's f32 sums (multiply, then add), and the last step rounds and adds. It is
// built with the flags of the rest, so the compiler vectorises it for the baseline.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "dit_lora.hpp"

namespace {

float FromBf16(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t ToBf16(float value) {  // finite values
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Problem {
    size_t rows, rank, cols;
    std::vector<uint16_t> weight, a, b;
    float strength;
};

void LoopRows(const Problem &p, uint16_t *out, size_t first, size_t last) {
    std::vector<float> sums(p.cols), a(p.cols);
    for (size_t row = first; row < last; row++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (size_t k = 0; k < p.rank; k++) {
            const float scaled = FromBf16(ToBf16(FromBf16(p.b[row * p.rank + k]) * p.strength));
            const uint16_t *from = &p.a[k * p.cols];
            for (size_t c = 0; c < p.cols; c++) {
                const float product = scaled * FromBf16(from[c]);
                sums[c] = sums[c] + product;
            }
        }
        for (size_t c = 0; c < p.cols; c++) {
            uint16_t &to = out[row * p.cols + c];
            to = ToBf16(FromBf16(ToBf16(sums[c])) + FromBf16(to));
        }
    }
}

void Loop(const Problem &p, uint16_t *out) {
    const size_t count = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < count; t++)
        threads.emplace_back(LoopRows, std::cref(p), out, p.rows * t / count, p.rows * (t + 1) / count);
    for (std::thread &thread : threads) thread.join();
}

template <typename Work>
double Seconds(const Work &work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::vector<uint16_t> Draw(std::mt19937 &random, size_t count) {
    std::vector<uint16_t> values(count);
    for (uint16_t &value : values)  // 0.02 or so, of either sign
        value = static_cast<uint16_t>((random() & 0x807f) | (118 + random() % 5) << 7);
    return values;
}

}  // namespace

int main(int argc, char **argv) {
    Problem p{4096, 450, 4096, {}, {}, {}, 0.8f};
    if (argc == 4) {
        p.rows = std::strtoul(argv[1], nullptr, 10);
        p.rank = std::strtoul(argv[2], nullptr, 10);
        p.cols = std::strtoul(argv[3], nullptr, 10);
    }
    std::mt19937 random(1);
    p.weight = Draw(random, p.rows * p.cols);
    p.a = Draw(random, p.rank * p.cols);
    p.b = Draw(random, p.rows * p.rank);
    const std::vector<DitLoraAdapter> adapters = {
        {"adapter", 0.8, {{"proj", {p.a.data(), p.b.data(), vt::DType::kBF16, static_cast<int64_t>(p.rank)}}}}};

    std::vector<double> ours, loop;
    bool equal = true;
    for (int round = 0; round < 5; round++) {
        std::vector<uint16_t> fused = p.weight, looped = p.weight;
        ours.push_back(Seconds([&] {
            DitFuseLoraIntoTensor(adapters, "proj", vt::DType::kBF16, static_cast<int64_t>(p.rows),
                                  static_cast<int64_t>(p.cols), reinterpret_cast<uint8_t *>(fused.data()),
                                  fused.size() * sizeof(uint16_t));
        }));
        loop.push_back(Seconds([&] { Loop(p, looped.data()); }));
        equal = equal && fused == looped;
    }
    std::printf("%zu x %zu x %zu, %u threads, medians of 5: ltx2c %.4f s, the loop %.4f s, ratio %.1f; bytes %s\n",
                p.rows, p.rank, p.cols, std::thread::hardware_concurrency(), Median(ours), Median(loop),
                Median(loop) / Median(ours), equal ? "equal" : "DIFFER");
    return !equal;
}
