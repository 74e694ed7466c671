// Batch normalisation and ReLU while training: mean and variance of each channel, then one pass that
// applies them. Moments are found by Welford, "Note on a method for calculating corrected sums of squares and products", 1962,
// and merged as Chan, Golub and LeVeque do (1983), in a fixed order: neither a large mean nor many rows cost digits, and the
// same input gives the same bits.
#include "batch_norm.cuh"

struct MomentsArguments {
    Shape shape;
    const ELEMENT* x;
    float *means, *squares;  // [slabs, C]: mean, and sum of squared deviations from it
};

struct MomentsScratch {
    float counts[WARPS], means[WARPS][TILE * WIDTH], squares[WARPS][TILE * WIDTH];
};

// One part takes in another one, which has `share` of all rows of both; count: rows of the first part.
static __device__ __forceinline__ void merge(float& mean, float& squares, float other_mean, float other_squares, float count, float share) {
    float off = other_mean - mean;
    mean = fmaf(off, share, mean);
    squares += fmaf(off * off, count * share, other_squares);
}

static __device__ __forceinline__ float share_of(float other, float count) { return other > 0.0f ? other / (count + other) : 0.0f; }

template <int COUNT>
static __device__ __forceinline__ void moments_of_slab(const MomentsArguments& a, MomentsScratch& scratch) {
    Place place = place_of_thread<COUNT>(a.shape);
    float count = 0, mean[COUNT] = {}, squares[COUNT] = {};
#pragma unroll 4
    for (int row = 0; row < place.rows; row++, place.at += place.step) {
        auto vector = load_vector<COUNT>(a.x + place.at);
        count += 1;
        float share = 1.0f / count;
        for (int lane = 0; lane < COUNT; lane++) {
            float value = to_float(vector.at[lane]), off = value - mean[lane];
            mean[lane] = fmaf(off, share, mean[lane]);
            squares[lane] = fmaf(off, value - mean[lane], squares[lane]);
        }
    }
    for (int distance = TILE; distance < 32; distance *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, count, distance), share = share_of(other, count);
        for (int lane = 0; lane < COUNT; lane++) {
            float other_mean = __shfl_xor_sync(0xffffffffu, mean[lane], distance);
            merge(mean[lane], squares[lane], other_mean, __shfl_xor_sync(0xffffffffu, squares[lane], distance), count, share);
        }
        count += other;
    }
    int warp = threadIdx.x / 32, column = threadIdx.x % 32;
    if (column == 0) scratch.counts[warp] = count;
    for (int lane = 0; lane < COUNT; lane++)
        if (column < TILE) {
            scratch.means[warp][column * COUNT + lane] = mean[lane];
            scratch.squares[warp][column * COUNT + lane] = squares[lane];
        }
    __syncthreads();
    int own = threadIdx.x, channel = place.first_channel + own;
    if (own >= TILE * COUNT || channel >= a.shape.channels) return;
    float total = scratch.counts[0], m = scratch.means[0][own], s = scratch.squares[0][own];
    for (int other = 1; other < WARPS; other++) {
        merge(m, s, scratch.means[other][own], scratch.squares[other][own], total, share_of(scratch.counts[other], total));
        total += scratch.counts[other];
    }
    a.means[(long long)place.slab * a.shape.channels + channel] = m;
    a.squares[(long long)place.slab * a.shape.channels + channel] = s;
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_moments(const __grid_constant__ MomentsArguments a) {
    __shared__ MomentsScratch scratch;
    if (a.shape.rows == 0 || a.shape.channels == 0) return;
    if (a.shape.in_vectors)
        moments_of_slab<WIDTH>(a, scratch);
    else
        moments_of_slab<1>(a, scratch);
}

struct CombineArguments {
    const float *means, *squares;  // [parts, C]
    long long rows, rows_per_part; // the last part has what is left
    int parts, channels;
    float *mean, *inverse_deviation;           // [C]
    float *running_mean, *running_variance;    // [C] or null
    double momentum, epsilon;

    __device__ __forceinline__ double count(int part) const {
        long long left = rows - part * rows_per_part;
        return double(left < rows_per_part ? left : rows_per_part);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_combine(const __grid_constant__ CombineArguments a) {
    __shared__ double scratch[3][WARPS][TILE];
    int channel = blockIdx.x * TILE + threadIdx.x % TILE, parts = channel < a.channels ? a.parts : 0;
    double count = 0, mean = 0, squares = 0;
    for (int part = threadIdx.x / TILE; part < parts; part += LANES) {
        count += a.count(part);
        mean += a.count(part) * a.means[(long long)part * a.channels + channel];
    }
    count = over_lanes(count, scratch[0]);
    mean = over_lanes(mean, scratch[1]);
    mean = count > 0 ? mean / count : 0;
    for (int part = threadIdx.x / TILE; part < parts; part += LANES) {
        double off = a.means[(long long)part * a.channels + channel] - mean;
        squares += a.squares[(long long)part * a.channels + channel] + a.count(part) * off * off;
    }
    squares = over_lanes(squares, scratch[2]);
    if (threadIdx.x >= TILE || channel >= a.channels) return;
    a.mean[channel] = float(mean);
    a.inverse_deviation[channel] = float(1 / sqrt(squares / (count > 0 ? count : 1) + a.epsilon));
    if (a.running_mean && count > 0) {
        double share = a.momentum, unbiased = squares / (count > 1 ? count - 1 : 1);
        a.running_mean[channel] = float((1 - share) * a.running_mean[channel] + share * mean);
        a.running_variance[channel] = float((1 - share) * a.running_variance[channel] + share * unbiased);
    }
}

struct ReluArguments {
    Shape shape;
    const ELEMENT* x;
    Channels channels;
    ELEMENT* result;
};

template <int COUNT>
static __device__ __forceinline__ void normalise_slab(const ReluArguments& a) {
    Place place = place_of_thread<COUNT>(a.shape);
    if (place.rows == 0) return;
    Affine<COUNT> affine(a.channels, place.channel);
    for (int row = 0; row < place.rows; row++, place.at += place.step) {
        auto vector = load_vector<COUNT>(a.x + place.at);
        for (int lane = 0; lane < COUNT; lane++) vector.at[lane] = relu(affine(lane, to_float(vector.at[lane])));
        store_vector(a.result + place.at, vector);
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1000
#define BLOCKS , 1  // without it ptxas 13.2 aims at full occupancy, and spills a register of 32
#else
#define BLOCKS
#endif

extern "C" __global__ void __launch_bounds__(THREADS BLOCKS) batch_norm_relu(const __grid_constant__ ReluArguments a) {
    if (a.shape.in_vectors)
        normalise_slab<WIDTH>(a);
    else
        normalise_slab<1>(a);
}
