// Runs CUDA kernels as C++ on the CPU, to find what is wrong with them rather than to be fast.
//
// A grid's blocks run one after the other; the threads of a block are fibers on one core, which change places only at
// barriers and warp exchanges. The order of blocks, and of threads between any two barriers, is drawn from a seed, and
// under half of the seeds warps run ahead of each other: a kernel that lacks a barrier gives wrong results under some. Reported as errors: a barrier that some threads
// never reach, an exchange between lanes that do not all take part, accesses outside of memory (guard pages around
// the buffers, see memory.py) and misaligned ones (-fsanitize=alignment traps). __shared__ memory is poisoned before
// every block.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>
#include <algorithm>
#include <numeric>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("cuda_shared")))

struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
static uint3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

extern char __start_cuda_shared[], __stop_cuda_shared[];
__attribute__((used)) __shared__ char the_section_is_never_empty[16];

namespace cuda_on_host {

constexpr size_t STACK_BYTES = 128 * 1024;
constexpr unsigned char POISON = 0xFF;  // NaN in every floating-point type, -1 in integers

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Fiber {
    ucontext_t start;
    jmp_buf context;
    bool started;
    State state;
    int exchange_kind;
    unsigned exchange_mask;
    uint64_t deposit;
    uint64_t seen[32];
};

static std::vector<Fiber> fibers;
static char* stacks = nullptr;
static unsigned running;
static jmp_buf scheduler;
static sigjmp_buf escape;
static std::function<void()> body;
static char trouble[512];

static void fail(const char* what) {
    std::snprintf(trouble, sizeof trouble, "%s (block %u, thread %u)", what, blockIdx.x, threadIdx.x);
    siglongjmp(escape, 1);
}

static void on_signal(int number, siginfo_t* info, void*) {
    if (number == SIGSEGV || number == SIGBUS)
        std::snprintf(trouble, sizeof trouble, "access outside of memory at %p (block %u, thread %u)", info->si_addr, blockIdx.x, threadIdx.x);
    else
        std::snprintf(trouble, sizeof trouble, "misaligned access or undefined arithmetic (block %u, thread %u)", blockIdx.x, threadIdx.x);
    siglongjmp(escape, 1);
}

static void fiber_main() {
    body();
    fibers[running].state = DONE;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void yield(State state) {
    Fiber& self = fibers[running];
    self.state = state;
    if (_setjmp(self.context) == 0) _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void resume(unsigned index) {
    Fiber& fiber = fibers[index];
    running = index;
    threadIdx = {index, 0, 0};
    if (_setjmp(scheduler) == 0) {
        if (fiber.started) _longjmp(fiber.context, 1);
        fiber.started = true;
        setcontext(&fiber.start);
    }
}

static bool release_barrier() {
    unsigned waiting = 0, done = 0;
    for (auto& fiber : fibers) {
        waiting += fiber.state == AT_BARRIER;
        done += fiber.state == DONE;
    }
    if (waiting && waiting + done == fibers.size() && done) fail("threads wait at __syncthreads that others never reach");
    if (!waiting || waiting != fibers.size()) return false;
    for (auto& fiber : fibers) fiber.state = READY;
    return true;
}

static bool release_exchanges() {
    bool any = false;
    for (size_t first = 0; first < fibers.size(); first += 32) {
        size_t lanes = std::min<size_t>(32, fibers.size() - first);
        for (size_t lane = 0; lane < lanes; lane++) {
            Fiber& one = fibers[first + lane];
            if (one.state != AT_EXCHANGE) continue;
            if (!(one.exchange_mask >> lane & 1)) fail("a lane calls a warp function whose mask does not name it");
            bool all = true;
            for (size_t other = 0; other < 32; other++) {
                if (!(one.exchange_mask >> other & 1)) continue;
                if (other >= lanes) fail("a warp function's mask names lanes that the block does not have");
                Fiber& peer = fibers[first + other];
                if (peer.state == DONE) fail("a warp function's mask names a lane that has left the kernel");
                all = all && peer.state == AT_EXCHANGE && peer.exchange_mask == one.exchange_mask && peer.exchange_kind == one.exchange_kind;
            }
            if (!all) continue;
            uint64_t seen[32];
            std::memset(seen, POISON, sizeof seen);  // what lanes outside of the mask hold is not defined
            for (size_t other = 0; other < lanes; other++)
                if (one.exchange_mask >> other & 1) seen[other] = fibers[first + other].deposit;
            unsigned mask = one.exchange_mask;
            for (size_t other = 0; other < lanes; other++)
                if (mask >> other & 1) {
                    std::memcpy(fibers[first + other].seen, seen, sizeof seen);
                    fibers[first + other].state = READY;
                }
            any = true;
        }
    }
    return any;
}

static std::vector<unsigned> order(unsigned count, std::mt19937& random, uint64_t schedule) {
    std::vector<unsigned> result(count);
    std::iota(result.begin(), result.end(), 0u);
    if (schedule == 1) std::reverse(result.begin(), result.end());
    if (schedule > 1) std::shuffle(result.begin(), result.end(), random);
    return result;
}

static void run_block(std::mt19937& random, uint64_t schedule) {
    std::memset(__start_cuda_shared, POISON, __stop_cuda_shared - __start_cuda_shared);
    for (size_t i = 0; i < fibers.size(); i++) {
        Fiber& fiber = fibers[i];
        fiber.started = false;
        fiber.state = READY;
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = stacks + i * STACK_BYTES;
        fiber.start.uc_stack.ss_size = STACK_BYTES;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, fiber_main, 0);
    }
    for (;;) {
        bool ran = false;
        if (schedule % 2) {  // a warp at a time runs as far as it can: others may be a whole barrier behind
            for (unsigned warp : order(unsigned(fibers.size() + 31) / 32, random, schedule))
                for (bool moved = true; moved;) {
                    moved = false;
                    for (unsigned lane : order(32, random, schedule)) {
                        unsigned i = warp * 32 + lane;
                        if (i < fibers.size() && fibers[i].state == READY) resume(i), ran = moved = true;
                    }
                    if (moved) release_exchanges();
                }
        } else {
            for (unsigned i : order(unsigned(fibers.size()), random, schedule))
                if (fibers[i].state == READY) resume(i), ran = true;
        }
        bool released = release_exchanges();
        released = release_barrier() || released;
        if (!ran && !released) {
            for (auto& fiber : fibers)
                if (fiber.state != DONE) fail("deadlock: threads wait for each other at different places");
            return;
        }
    }
}

// 0, or 1 with the reason in `trouble`. `schedule`: 0 ascending, 1 descending, else the seed of an arbitrary order; odd: warp by warp.
static int run(std::function<void()> kernel, unsigned blocks, unsigned threads, uint64_t schedule) {
    static char signal_stack[64 * 1024];
    stack_t alternate = {signal_stack, 0, sizeof signal_stack}, old_stack;
    struct sigaction action = {}, old[4];
    const int signals[4] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&alternate, &old_stack);
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &old[i]);
    static bool broken;
    broken = false;
    body = std::move(kernel);
    fibers.assign(threads, Fiber{});
    if (!stacks) stacks = (char*)mmap(nullptr, 1024 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sigsetjmp(escape, 1) == 0) {
        std::mt19937 random((unsigned)schedule);
        blockDim = {threads, 1, 1};
        gridDim = {blocks, 1, 1};
        for (unsigned block : order(blocks, random, schedule)) {
            blockIdx = {block, 0, 0};
            run_block(random, schedule);
        }
    } else {
        broken = true;
    }
    for (int i = 0; i < 4; i++) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&old_stack, nullptr);
    return broken;
}

template <class Arguments>
int call(void (*kernel)(Arguments), const void* arguments, unsigned blocks, unsigned threads, uint64_t schedule) {
    return run([=] { kernel(*static_cast<const std::remove_cv_t<Arguments>*>(arguments)); }, blocks, threads, schedule);
}

template <class Arguments>
size_t argument_bytes(void (*)(Arguments)) {
    return sizeof(Arguments);
}

static const uint64_t* exchange(int kind, unsigned mask, uint64_t deposit) {
    Fiber& self = fibers[running];
    self.exchange_kind = kind;
    self.exchange_mask = mask;
    self.deposit = deposit;
    yield(AT_EXCHANGE);
    return fibers[running].seen;
}

template <class T>
uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
T shuffle(int kind, unsigned mask, T value, unsigned source) {  // source: a lane number; outside of the warp: own value
    const uint64_t* seen = exchange(kind, mask, to_bits(value));
    return source < 32 ? from_bits<T>(seen[source]) : value;
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::yield(cuda_on_host::AT_BARRIER); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) { return cuda_on_host::shuffle(2, mask, value, (threadIdx.x & 31) ^ unsigned(bits)); }
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint64_t* seen = cuda_on_host::exchange(5, mask, predicate != 0);
    unsigned result = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) result |= unsigned(seen[lane] & 1) << lane;
    return result;
}
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

inline float __fmul_rn(float a, float b) { return a * b; }  // compiled with -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __uint_as_float(unsigned bits) { return cuda_on_host::from_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return unsigned(cuda_on_host::to_bits(value)); }
inline double rsqrt(double value) { return 1 / std::sqrt(value); }
using std::isfinite;
using std::isnan;
using std::max;
using std::min;
