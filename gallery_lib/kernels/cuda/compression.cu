// Gradients made small for the wire, and added up from it. What rounding loses is kept in `error` and goes along with the next
// gradient (Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019).
//
// int8: GROUP neighbouring elements share an fp32 scale, their largest magnitude over 127. A group of a warp; a lane has EIGHT
// elements. A group that holds an infinity or a NaN is sent as NaN, so that an overflow is seen after the sum as well; then
// `error` stays what it was. Sums are over ranks in their order, in fp32: the same bits everywhere.
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int EIGHT = 8;
constexpr int GROUP = 32 * EIGHT;

static __device__ __forceinline__ float to_float(signed char value) { return float(value); }
static __device__ __forceinline__ void from_float(float value, signed char& result) { result = (signed char)(int)value; }

template <class T>
constexpr int WIDTH = sizeof(T) < 2 ? EIGHT : 16 / sizeof(T);  // elements of an access

// EIGHT elements from an address, of which `left` (more or fewer) are there; the others are 0.
template <class T>
static __device__ __forceinline__ void load(const T* from, long long left, float (&to)[EIGHT]) {
    if (left >= EIGHT && is_aligned<WIDTH<T>>(from)) {
        for (int i = 0; i < EIGHT; i += WIDTH<T>) {
            auto vector = load_vector<WIDTH<T>>(from + i);
            for (int lane = 0; lane < WIDTH<T>; lane++) to[i + lane] = to_float(vector.at[lane]);
        }
    } else {
        for (int i = 0; i < EIGHT; i++) to[i] = i < left ? to_float(from[i]) : 0.0f;
    }
}

template <class T>
static __device__ __forceinline__ void store(const float (&from)[EIGHT], long long left, T* to) {
    if (left >= EIGHT && is_aligned<WIDTH<T>>(to)) {
        for (int i = 0; i < EIGHT; i += WIDTH<T>) {
            Vector<T, WIDTH<T>> vector;
            for (int lane = 0; lane < WIDTH<T>; lane++) from_float(from[i + lane], vector.at[lane]);
            store_vector(to + i, vector);
        }
    } else {
        for (int i = 0; i < EIGHT; i++)
            if (i < left) from_float(from[i], to[i]);
    }
}

struct PackArguments {
    const ELEMENT* gradient;  // [size]
    float* error;             // [size], or null: nothing is kept
    long long size;
    float* scales;            // one of each group
    signed char* packed;      // [size]
};

static __device__ __forceinline__ long long first_of_thread() { return ((long long)blockIdx.x * THREADS + threadIdx.x) * EIGHT; }

// The gradient with what was lost before, and the latter alone.
static __device__ __forceinline__ void load_both(const PackArguments& a, long long at, float (&values)[EIGHT], float (&error)[EIGHT]) {
    load(a.gradient + at, a.size - at, values);
    if (!a.error) return;
    load(a.error + at, a.size - at, error);
    for (int i = 0; i < EIGHT; i++) values[i] += error[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) pack_int8(const __grid_constant__ PackArguments a) {
    long long at = first_of_thread();
    float values[EIGHT], error[EIGHT], largest = 0;
    load_both(a, at, values, error);
    bool finite = true;
    for (int i = 0; i < EIGHT; i++) {
        largest = fmaxf(largest, fabsf(values[i]));
        finite = finite && isfinite(values[i]);
    }
    for (int distance = 16; distance > 0; distance /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    finite = __all_sync(0xffffffffu, finite);
    if (at >= a.size) return;
    float scale = finite ? largest / 127 : not_a_number();
    if (threadIdx.x % 32 == 0) a.scales[at / GROUP] = scale;
    for (int i = 0; i < EIGHT; i++) {
        float code = scale > 0.0f ? fminf(fmaxf(rintf(values[i] / scale), -127.0f), 127.0f) : 0.0f;
        if (finite) error[i] = fmaf(-code, scale, values[i]);
        values[i] = code;
    }
    store(values, a.size - at, a.packed + at);
    if (a.error && finite) store(error, a.size - at, a.error + at);
}

struct AccumulateArguments {
    ELEMENT* sum;               // [size]
    long long size;
    int add;                    // whether `sum` counts, or is only written
    float factor;               // of what comes from the wire
    int ranks;
    long long bytes_of_rank;    // from the start of one rank's part to that of the next
    const unsigned char* packed;
    long long codes_from;       // bytes of scales before the codes
};

extern "C" __global__ void __launch_bounds__(THREADS) accumulate_int8(const __grid_constant__ AccumulateArguments a) {
    long long at = first_of_thread();
    if (at >= a.size) return;
    float sum[EIGHT] = {};
    for (int rank = 0; rank < a.ranks; rank++) {
        const unsigned char* part = a.packed + rank * a.bytes_of_rank;
        float values[EIGHT], scale = reinterpret_cast<const float*>(part)[at / GROUP];
        load(reinterpret_cast<const signed char*>(part + a.codes_from) + at, a.size - at, values);
        for (int i = 0; i < EIGHT; i++) sum[i] = fmaf(values[i], scale, sum[i]);
    }
    float before[EIGHT] = {};
    if (a.add) load(a.sum + at, a.size - at, before);
    for (int i = 0; i < EIGHT; i++) sum[i] = fmaf(sum[i], a.factor, before[i]);
    store(sum, a.size - at, a.sum + at);
}
