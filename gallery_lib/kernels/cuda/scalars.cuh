// Arithmetic is in fp32 whatever the tensors hold: conversions from and to the element types, rounding to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fffffffu); }  // NVRTC has no <math.h>

static __device__ __forceinline__ float to_float(float value) { return value; }
static __device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
static __device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

static __device__ __forceinline__ void from_float(float value, float& result) { result = value; }
static __device__ __forceinline__ void from_float(float value, __nv_bfloat16& result) { result = __float2bfloat16_rn(value); }
static __device__ __forceinline__ void from_float(float value, __half& result) { result = __float2half_rn(value); }

// The largest number that becomes 0 as a T: half of the smallest T, a tie that goes to the even one.
template <class T> constexpr float ROUNDS_TO_ZERO = 0.0f;
template <> constexpr float ROUNDS_TO_ZERO<__nv_bfloat16> = 0x1p-134f;
template <> constexpr float ROUNDS_TO_ZERO<__half> = 0x1p-25f;

// e^x, off by at most 2^-22 of itself and by the rounding of x · log2(e), a 2^-23 of x; 0 where it is below 2^-126.
static __device__ __forceinline__ float exponential(float x) {
    float result;
#ifdef __CUDACC__
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
#else  // kernels that run on the CPU
    result = exp2f(x * 1.44269504f);
    if (result < 0x1p-126f) result = 0;
#endif
    return result;
}
