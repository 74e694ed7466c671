// bfloat16 on the host, rounded to nearest even as the device does (cvt.rn.bf16.f32: every NaN becomes 0x7FFF).
#pragma once
#include "cuda_on_host.h"

struct alignas(2) __nv_bfloat16 { unsigned short bits; };

inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(unsigned(value.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
    if (std::isnan(value)) return {0x7FFF};
    unsigned bits = __float_as_uint(value);
    return {(unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
