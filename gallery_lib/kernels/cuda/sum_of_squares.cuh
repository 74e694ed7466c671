// Sums of squares of fp32 values of any size, without overflow, underflow or fp64 arithmetic per element.
//
// Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978: large and small values are scaled by
// a power of two and summed apart. The three sums meet in fp64, whose range holds the square of every fp32 value. The
// total is finite if and only if every value was: an infinity or a NaN cannot cancel, and finite values cannot overflow.
#pragma once

struct SumOfSquares {
    float small = 0, middle = 0, large = 0;

    __device__ __forceinline__ void add(float value) {
        float magnitude = fabsf(value);
        if (magnitude > 0x1p50f) {
            float scaled = value * 0x1p-70f;  // at most 2^58, whose square is 2^116
            large += scaled * scaled;
        } else if (magnitude < 0x1p-50f) {
            float scaled = value * 0x1p100f;  // a denormal of 2^-149 becomes 2^-49
            small += scaled * scaled;
        } else {
            middle += value * value;  // NaN too
        }
    }

    __device__ __forceinline__ double total() const {
        return double(middle) + double(large) * 0x1p140 + double(small) * 0x1p-200;
    }
};

// The sum over all THREADS of a block, in thread 0. Every thread has to call it; may be called again with other scratch.
static __device__ __forceinline__ double block_sum(double value, double (&scratch)[THREADS / 32]) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < THREADS / 32; warp++) value += scratch[warp];
    return value;
}
