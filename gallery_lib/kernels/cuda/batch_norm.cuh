// What the passes of batch normalisation share. A batch [N, C, H, W] in channels_last is a matrix: N·H·W rows of C channels,
// channels innermost. A block works on a slab of neighbouring rows and on TILE vectors of channels side by side, which are
// 128 bytes of a row; LANES rows at a time. So a thread keeps its channels, and their parameters stay in registers.
// Vectors need C to be a multiple of them and every tensor aligned to 16 bytes; else a vector is one element.
#pragma once
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int TILE = 8;
constexpr int LANES = THREADS / TILE;
constexpr int WARPS = THREADS / 32;
constexpr int WIDTH = 16 / sizeof(ELEMENT);

struct Shape {
    long long rows, rows_per_slab;
    int channels, tiles, in_vectors;
};

struct Place {
    int slab, first_channel, channel;  // first_channel: of the block
    int rows;                          // of the thread, LANES apart; beside the last channel it has none
    long long at, step;                // its first element, and the way from row to row
};

template <int COUNT>
static __device__ __forceinline__ Place place_of_thread(const Shape& shape) {
    int slab = blockIdx.x / shape.tiles, first_channel = (blockIdx.x - slab * shape.tiles) * TILE * COUNT;
    int channel = first_channel + int(threadIdx.x % TILE) * COUNT, lane = threadIdx.x / TILE;
    long long first = slab * shape.rows_per_slab, left = shape.rows - first;
    int rows = int(left < shape.rows_per_slab ? left : shape.rows_per_slab);
    rows = channel < shape.channels ? (rows - lane + LANES - 1) / LANES : 0;
    return {slab, first_channel, channel, rows, (first + lane) * shape.channels + channel, (long long)LANES * shape.channels};
}

struct Channels {
    const float *mean, *inverse_deviation;  // [C]
    const float *weight, *bias;             // [C] or null
};

// (x − mean) · scale + shift of COUNT channels: the same arithmetic forward and backward, so that both know the same mask.
template <int COUNT>
struct Affine {
    float mean[COUNT], scale[COUNT], shift[COUNT];

    __device__ __forceinline__ Affine(const Channels& channels, int first) {
        for (int lane = 0; lane < COUNT; lane++) {
            mean[lane] = channels.mean[first + lane];
            scale[lane] = channels.inverse_deviation[first + lane] * (channels.weight ? channels.weight[first + lane] : 1.0f);
            shift[lane] = channels.bias ? channels.bias[first + lane] : 0.0f;
        }
    }

    __device__ __forceinline__ float operator()(int lane, float x) const { return fmaf(x - mean[lane], scale[lane], shift[lane]); }
};

static __device__ __forceinline__ ELEMENT relu(float value) {
    ELEMENT result;
    from_float(value <= 0.0f ? 0.0f : value, result);  // NaN stays
    return result;
}

// Whether ReLU lets no gradient through: judged by what it gave after rounding, as torch does.
static __device__ __forceinline__ bool is_blocked(float value) { return value <= ROUNDS_TO_ZERO<ELEMENT>; }

// The sum over the threads with the same place in TILE, for each of them. Every thread has to call it; `scratch` serves once.
static __device__ __forceinline__ double over_lanes(double value, double (&scratch)[WARPS][TILE]) {
    for (int distance = TILE; distance < 32; distance *= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 < TILE) scratch[threadIdx.x / 32][threadIdx.x % 32] = value;
    __syncthreads();
    double total = 0;
    for (int warp = 0; warp < WARPS; warp++) total += scratch[warp][threadIdx.x % TILE];
    return total;
}
