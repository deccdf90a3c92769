// A pool of std::threads as an engine has one, and ltx2c's jobs on it. No OpenMP.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <ltx2c.h>

class Pool {
public:
    // Up to `threads` threads, the caller's own among them: fewer where the system starts no more.
    explicit Pool(std::size_t threads) {
        try {
            while (threads_.size() + 1 < threads) threads_.emplace_back(&Pool::Work, this, threads_.size() + 1);
        } catch (const std::system_error &) {
        }
    }

    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    ~Pool() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ended_ = true;
        }
        begun_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }

    std::size_t Size() const { return threads_.size() + 1; }

    // Calls task(0), task(1), ..., one in each thread, and returns when all have. From one thread at a time.
    void Run(const std::function<void(std::size_t)> &task) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            task_ = &task;
            busy_ = threads_.size();
            round_++;
        }
        begun_.notify_all();
        task(0);
        std::unique_lock<std::mutex> lock(mutex_);
        idle_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    void Work(std::size_t number) {
        std::size_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            begun_.wait(lock, [&] { return ended_ || round_ != seen; });
            if (ended_) return;
            seen = round_;
            const std::function<void(std::size_t)> &task = *task_;
            lock.unlock();
            task(number);
            lock.lock();
            if (--busy_ == 0) idle_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable begun_, idle_;
    const std::function<void(std::size_t)> *task_ = nullptr;
    std::size_t busy_ = 0, round_ = 0;
    bool ended_ = false;
    std::vector<std::thread> threads_;
};

// Fuses all jobs together: no thread waits between one weight and the next. LTX2C_OK, or why nothing was written.
inline int FuseOn(Pool &pool, std::vector<ltx2c_job> &jobs) {
    ltx2c_batch batch;
    const int status = ltx2c_open_batch(&batch, ltx2c_best_kernel(), jobs.data(), jobs.size(), pool.Size());
    if (status != LTX2C_OK) return status;
    pool.Run([&batch](std::size_t worker) {
        while (worker < batch.worker_count && ltx2c_run_block(&batch, worker)) continue;
    });
    ltx2c_close_batch(&batch);
    return LTX2C_OK;
}
