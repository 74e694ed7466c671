// uint8 images [N, H, W, 3] to a normalised batch, channels innermost (what torch calls channels_last): crop, mirror,
// scale and shift in one pass. A thread makes WIDTH neighbouring values of the output, 16 bytes; it reads the bytes one by
// one, from lines that its neighbours read too. A crop that does not lie in its image gives NaN, and reads nothing there.
#include "scalars.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / sizeof(ELEMENT);
constexpr int CHANNELS = 3;

struct ImageArguments {
    const unsigned char* images;
    int height, width;              // of the images
    int cropped_height, cropped_width;
    const int* tops;                // [N] or null: 0
    const int* lefts;               // [N] or null: 0
    const unsigned char* mirrored;  // [N], not 0 for left and right exchanged, or null
    float scale[CHANNELS], shift[CHANNELS];
    ELEMENT* batch;                 // aligned to 16 bytes
    long long size;                 // N · cropped_height · cropped_width · CHANNELS
};

extern "C" __global__ void __launch_bounds__(THREADS) prepare_images(const __grid_constant__ ImageArguments a) {
    long long start = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (start >= a.size) return;
    long long pixel = start / CHANNELS;
    int channel = int(start - pixel * CHANNELS);
    long long line = pixel / a.cropped_width, image = line / a.cropped_height;
    int x = int(pixel - line * a.cropped_width), y = int(line - image * a.cropped_height);

    Vector<ELEMENT, WIDTH> values;
    int count = int(a.size - start < WIDTH ? a.size - start : WIDTH);
    for (int i = 0; i < WIDTH; i++) {
        if (i < count) {
            int row = y + (a.tops ? a.tops[image] : 0);
            int column = (a.mirrored && a.mirrored[image] ? a.cropped_width - 1 - x : x) + (a.lefts ? a.lefts[image] : 0);
            float value = not_a_number();
            if (row >= 0 && row < a.height && column >= 0 && column < a.width)
                value = a.images[((image * a.height + row) * a.width + column) * CHANNELS + channel];
            float scale = channel == 0 ? a.scale[0] : channel == 1 ? a.scale[1] : a.scale[2];
            float shift = channel == 0 ? a.shift[0] : channel == 1 ? a.shift[1] : a.shift[2];
            from_float(__fadd_rn(__fmul_rn(value, scale), shift), values.at[i]);  // not fused: rounded as torch rounds
        }
        if (++channel == CHANNELS) {
            channel = 0;
            if (++x == a.cropped_width) {
                x = 0;
                if (++y == a.cropped_height) y = 0, image++;
            }
        }
    }
    if (count == WIDTH)
        store_vector(a.batch + start, values);
    else
        for (int i = 0; i < WIDTH; i++)
            if (i < count) a.batch[start + i] = values.at[i];
}
