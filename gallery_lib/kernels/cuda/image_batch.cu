// uint8 images [N, H, W, 3] to a normalised batch, channels innermost (what torch calls channels_last): scale and shift in one
// pass. A thread makes WIDTH neighbouring values of the output, 16 bytes; it reads the bytes one by one, from lines that its
// neighbours read too.
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / sizeof(ELEMENT);
constexpr int CHANNELS = 3;

struct ImageArguments {
    const unsigned char* images;
    float scale[CHANNELS], shift[CHANNELS];
    ELEMENT* batch;  // aligned to 16 bytes
    long long size;  // N · H · W · CHANNELS
};

extern "C" __global__ void __launch_bounds__(THREADS) prepare_images(const __grid_constant__ ImageArguments a) {
    long long start = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (start >= a.size) return;
    int channel = int(start % CHANNELS), count = int(a.size - start < WIDTH ? a.size - start : WIDTH);
    Vector<ELEMENT, WIDTH> values;
    for (int i = 0; i < WIDTH; i++) {
        float value = i < count ? a.images[start + i] : 0.0f;
        float scale = channel == 0 ? a.scale[0] : channel == 1 ? a.scale[1] : a.scale[2];
        float shift = channel == 0 ? a.shift[0] : channel == 1 ? a.shift[1] : a.shift[2];
        from_float(__fadd_rn(__fmul_rn(value, scale), shift), values.at[i]);  // not fused: rounded as torch rounds
        if (++channel == CHANNELS) channel = 0;
    }
    if (count == WIDTH)
        store_vector(a.batch + start, values);
    else
        for (int i = 0; i < WIDTH; i++)
            if (i < count) a.batch[start + i] = values.at[i];
}
