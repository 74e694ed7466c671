// Softmax cross-entropy over the rows of a matrix of logits, with label smoothing and ignored labels. One block a row.
//
// Forward reads a row once: running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018), rescaled once for a vector, and the sum of logits for smoothing. It keeps one number a row, the log of the sum; the
// gradient is computed from that and the logits, so no second matrix lives between.
// A label outside of the classes gives NaN; nothing outside of the row is read for it.
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / sizeof(ELEMENT);
constexpr float LOWEST = -0x1.fffffep127f;  // of the finite numbers: unlike -infinity, it can be subtracted from itself

struct RowArguments {
    const ELEMENT* logits;
    long long row_stride;
    int classes;
    const long long* labels;
    long long ignored_label;
    float smoothing;
    float* loss;
    float* log_sum;
};

struct RowStatistics {
    float maximum = LOWEST, sum = 0, logits = 0;

    // An infinity makes the sum NaN, as a NaN does; -infinity adds nothing to it.
    template <bool ADDS_LOGITS, int COUNT>
    __device__ __forceinline__ void add(const Vector<ELEMENT, COUNT>& elements) {
        float larger = maximum, others = 0;
        for (int lane = 0; lane < COUNT; lane++) larger = fmaxf(larger, to_float(elements.at[lane]));
        for (int lane = 0; lane < COUNT; lane++) {
            others += exponential(to_float(elements.at[lane]) - larger);
            if (ADDS_LOGITS) logits += to_float(elements.at[lane]);
        }
        sum = fmaf(sum, exponential(maximum - larger), others);
        maximum = larger;
    }

    __device__ __forceinline__ void merge(float other_maximum, float other_sum, float other_logits) {
        float larger = fmaxf(maximum, other_maximum);
        sum = sum * exponential(maximum - larger) + other_sum * exponential(other_maximum - larger);
        maximum = larger;
        logits += other_logits;
    }
};

// What one thread reads of a row.
template <bool ADDS_LOGITS>
static __device__ __forceinline__ RowStatistics part_of_row(const ELEMENT* elements, int classes) {
    RowStatistics part;
    int head = min(elements_before_boundary(elements), classes), vectors = (classes - head) / WIDTH;
    for (int i = threadIdx.x; i < vectors; i += THREADS) part.add<ADDS_LOGITS>(load_vector<WIDTH>(elements + head + i * WIDTH));
    if (int(threadIdx.x) < head) part.add<ADDS_LOGITS>(load_vector<1>(elements + threadIdx.x));
    int tail = head + vectors * WIDTH + threadIdx.x;
    if (tail < classes) part.add<ADDS_LOGITS>(load_vector<1>(elements + tail));
    return part;
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_rows(const __grid_constant__ RowArguments a) {
    __shared__ float maxima[THREADS / 32], sums[THREADS / 32], logits[THREADS / 32];
    long long row = blockIdx.x, label = a.labels[row];
    if (label == a.ignored_label) {
        if (threadIdx.x == 0) a.loss[row] = 0, a.log_sum[row] = 0;
        return;
    }
    const ELEMENT* elements = a.logits + row * a.row_stride;
    bool known = label >= 0 && label < a.classes;
    float own = known ? to_float(elements[label]) : not_a_number();

    RowStatistics statistics = a.smoothing != 0.0f ? part_of_row<true>(elements, a.classes) : part_of_row<false>(elements, a.classes);
    for (int distance = 16; distance > 0; distance /= 2) {
        float maximum = __shfl_xor_sync(0xffffffffu, statistics.maximum, distance), sum = __shfl_xor_sync(0xffffffffu, statistics.sum, distance);
        statistics.merge(maximum, sum, __shfl_xor_sync(0xffffffffu, statistics.logits, distance));
    }
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) maxima[warp] = statistics.maximum, sums[warp] = statistics.sum, logits[warp] = statistics.logits;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int other = 1; other < THREADS / 32; other++) statistics.merge(maxima[other], sums[other], logits[other]);
    float log_sum = statistics.maximum + logf(statistics.sum);
    float loss = log_sum - own;
    if (a.smoothing != 0.0f) loss = (1 - a.smoothing) * loss + a.smoothing * (log_sum - statistics.logits / a.classes);
    a.loss[row] = loss;
    a.log_sum[row] = log_sum;
}

struct GradientArguments {
    const ELEMENT* logits;
    long long row_stride;
    int classes;
    const long long* labels;
    long long ignored_label;
    float smoothing;
    const float* log_sum;
    const float* of_loss;      // the gradient of each row's loss
    long long of_loss_stride;  // 0: all rows have the same one
    ELEMENT* gradient;         // rows without gaps
};

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_gradient(const __grid_constant__ GradientArguments a) {
    long long row = blockIdx.x, label = a.labels[row];
    const ELEMENT* elements = a.logits + row * a.row_stride;
    ELEMENT* gradient = a.gradient + row * a.classes;
    auto write_row = [&](auto of_logit) {
        int head = min(elements_before_boundary(elements), a.classes), vectors = (a.classes - head) / WIDTH;
        if (!is_aligned<WIDTH>(gradient + head)) head = 0, vectors = 0;
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            auto vector = load_vector<WIDTH>(elements + head + i * WIDTH);
            for (int lane = 0; lane < WIDTH; lane++) from_float(of_logit(to_float(vector.at[lane])), vector.at[lane]);
            store_vector(gradient + head + i * WIDTH, vector);
        }
        if (int(threadIdx.x) < head) from_float(of_logit(to_float(elements[threadIdx.x])), gradient[threadIdx.x]);
        for (int i = head + vectors * WIDTH + threadIdx.x; i < a.classes; i += THREADS) from_float(of_logit(to_float(elements[i])), gradient[i]);
    };
    if (label == a.ignored_label) return write_row([](float) { return 0.0f; });  // reads no logits

    bool known = label >= 0 && label < a.classes;
    float of_loss = known ? a.of_loss[row * a.of_loss_stride] : not_a_number(), log_sum = a.log_sum[row], each = a.smoothing / a.classes;
    auto of_other = [&](float logit) { return exponential(logit - log_sum) - each; };
    write_row([&](float logit) { return of_loss * of_other(logit); });
    __syncthreads();
    if (threadIdx.x == 0 && known) from_float(of_loss * (of_other(to_float(elements[label])) - (1 - a.smoothing)), gradient[label]);
}
