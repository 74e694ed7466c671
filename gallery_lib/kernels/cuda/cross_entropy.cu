// Softmax cross-entropy over the rows of a matrix of logits, with label smoothing and ignored labels. One block a row.
//
// Forward reads a row once: running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018), and the sum of logits for smoothing. It keeps one number a row, the log of the sum; the gradient is computed from
// that and the logits, so no second matrix lives between.
// A label outside of the classes gives NaN; nothing outside of the row is read for it.
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / sizeof(ELEMENT);

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
    float maximum = -infinity(), sum = 0, logits = 0;

    __device__ __forceinline__ void add(float value) {
        logits += value;
        if (value > maximum) {
            sum = sum * expf(maximum - value) + 1;
            maximum = value;
        } else if (value != -infinity()) {  // NaN arrives here
            sum += expf(value - maximum);
        }
    }

    __device__ __forceinline__ void merge(float other_maximum, float other_sum, float other_logits) {
        float larger = fmaxf(maximum, other_maximum);
        if (larger != -infinity()) sum = sum * expf(maximum - larger) + other_sum * expf(other_maximum - larger);
        else sum += other_sum;  // 0, or NaN
        maximum = larger;
        logits += other_logits;
    }
};

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

    RowStatistics statistics;
    int head = min(elements_before_boundary(elements), a.classes), vectors = (a.classes - head) / WIDTH;
    auto take = [&](ELEMENT element) { statistics.add(to_float(element)); };
    if (int(threadIdx.x) < head) take(elements[threadIdx.x]);
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        auto vector = load_vector<WIDTH>(elements + head + i * WIDTH);
        for (int lane = 0; lane < WIDTH; lane++) take(vector.at[lane]);
    }
    int tail = head + vectors * WIDTH + threadIdx.x;
    if (tail < a.classes) take(elements[tail]);

    for (int distance = 16; distance > 0; distance /= 2) {
        float maximum = __shfl_xor_sync(0xffffffffu, statistics.maximum, distance), sum = __shfl_xor_sync(0xffffffffu, statistics.sum, distance);
        statistics.merge(maximum, sum, __shfl_xor_sync(0xffffffffu, statistics.logits, distance));
    }
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) maxima[warp] = statistics.maximum, sums[warp] = statistics.sum, logits[warp] = statistics.logits;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int other = 1; other < THREADS / 32; other++) statistics.merge(maxima[other], sums[other], logits[other]);
    float log_sum = statistics.maximum == infinity() ? not_a_number() : statistics.maximum + logf(statistics.sum);
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
    const float* of_loss;  // the gradient of each row's loss
    ELEMENT* gradient;     // rows without gaps
};

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_gradient(const __grid_constant__ GradientArguments a) {
    long long row = blockIdx.x, label = a.labels[row];
    const ELEMENT* elements = a.logits + row * a.row_stride;
    ELEMENT* gradient = a.gradient + row * a.classes;
    bool ignored = label == a.ignored_label, known = label >= 0 && label < a.classes;
    float of_loss = ignored ? 0.0f : known ? a.of_loss[row] : not_a_number(), log_sum = a.log_sum[row], each = a.smoothing / a.classes;

    auto at = [&](int index, ELEMENT element) {
        float difference = expf(to_float(element) - log_sum) - each - (index == label ? 1 - a.smoothing : 0.0f);
        ELEMENT result;
        from_float(ignored ? 0.0f : of_loss * difference, result);
        return result;
    };
    int head = min(elements_before_boundary(elements), a.classes), vectors = (a.classes - head) / WIDTH;
    if (!is_aligned<WIDTH>(gradient + head)) head = 0, vectors = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        int start = head + i * WIDTH;
        auto vector = load_vector<WIDTH>(elements + start);
        for (int lane = 0; lane < WIDTH; lane++) vector.at[lane] = at(start + lane, vector.at[lane]);
        store_vector(gradient + start, vector);
    }
    if (int(threadIdx.x) < head) gradient[threadIdx.x] = at(threadIdx.x, elements[threadIdx.x]);
    for (int i = head + vectors * WIDTH + threadIdx.x; i < a.classes; i += THREADS) gradient[i] = at(i, elements[i]);
}
