// Arithmetic is in fp32 whatever the tensors hold: conversions from and to the element types, rounding to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }  // NVRTC has no <math.h>
static __device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fffffffu); }

static __device__ __forceinline__ float to_float(float value) { return value; }
static __device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
static __device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

static __device__ __forceinline__ void from_float(float value, float& result) { result = value; }
static __device__ __forceinline__ void from_float(float value, __nv_bfloat16& result) { result = __float2bfloat16_rn(value); }
static __device__ __forceinline__ void from_float(float value, __half& result) { result = __float2half_rn(value); }
