// Launches: kernels of torch, own kernels, and those that Triton has compiled.
//
// Own kernels run as tests/cuda_on_host builds them for the host. Kernels that Triton has compiled
// are counted by name and do not run, so what they would have written is left as it was. Kernels of
// torch itself are refused: the operators stand in for them (operators.py), and what gets here was
// forgotten there. FAKE_GPU_TORCH_KERNELS=count counts these as well, where only launches matter.
#include "device.h"

#include <cxxabi.h>
#include <dlfcn.h>

namespace fake {
namespace {

std::map<const void*, std::string> torch_kernels;
std::map<std::string, long> calls, launches;
std::vector<std::weak_ptr<Graph>> graphs;

// Machine code as the test's plugin writes it: this word, then the path of the host's library.
constexpr char OWN[] = "fake GPU: ";
constexpr size_t MOST_ARGUMENTS = 32764;  // bytes, from sm_70 on

struct Kernel {
    std::string name;
    int (*call)(const void* arguments, unsigned blocks, unsigned threads, uint64_t schedule) = nullptr;
    size_t argument_bytes = 0;
    const char* (*trouble)() = nullptr;
};

struct Library {
    void* handle = nullptr;
};

std::string readable(const std::string& name) {
    int status;
    char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string result = text ? text : name;
    free(text);
    return result;
}

cudaError_t torch_kernel(const void* function, cudaStream_t stream) {
    static const char* text = getenv("FAKE_GPU_TORCH_KERNELS");
    static const bool counted = text && !strcmp(text, "count");
    std::string name;
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        auto found = torch_kernels.find(function);
        name = found == torch_kernels.end() ? "unknown" : found->second;
    }
    launched("torch kernel " + name, stream_of(stream));
    if (counted) return cudaSuccess;
    fprintf(stderr, "fake GPU: nothing stands in for a kernel of torch: %s\n", readable(name).c_str());
    return cudaErrorNotSupported;
}

CUresult launch(Kernel* kernel, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,
                unsigned threads_y, unsigned threads_z, void* handle, void** parameters) {
    Stream* stream = stream_of(handle);
    launched((kernel->call ? "own kernel " : "Triton kernel ") + kernel->name, stream);
    if (stream->device != current_device()) {
        fprintf(stderr, "fake GPU: %s: its stream is of device %d, and %d is the current device\n",
                kernel->name.c_str(), stream->device, current_device());
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (blocks > 2147483647u || kernel->argument_bytes > MOST_ARGUMENTS) return CUDA_ERROR_INVALID_VALUE;
    if (!blocks || !blocks_y || !blocks_z || !threads || !threads_y || !threads_z)
        return CUDA_ERROR_INVALID_VALUE;
    static const char* own = getenv("FAKE_GPU_OWN_KERNELS");
    static const bool only_counted = own && !strcmp(own, "count");
    if (!kernel->call || only_counted) return CUDA_SUCCESS;
    if (blocks_y != 1 || blocks_z != 1 || threads_y != 1 || threads_z != 1) return CUDA_ERROR_INVALID_VALUE;
    const char* first = static_cast<const char*>(parameters[0]);
    auto arguments = std::make_shared<std::vector<char>>(first, first + kernel->argument_bytes);
    enqueue(stream, [=] {
        constexpr uint64_t SCHEDULE = 5;  // the order of threads and blocks
        if (!kernel->call(arguments->data(), blocks, threads, SCHEDULE)) return cudaSuccess;
        fprintf(stderr, "fake GPU: %s: %s\n", kernel->name.c_str(), kernel->trouble());
        return cudaErrorIllegalAddress;
    });
    return CUDA_SUCCESS;
}

}  // namespace

void count(const std::string& what) {
    std::lock_guard<std::recursive_mutex> held(lock);
    calls[what]++;
}
void launched(const std::string& what, Stream* stream) {
    std::lock_guard<std::recursive_mutex> held(lock);
    (stream->capture ? stream->capture->graph->kernels : launches)[what]++;
    calls["a launch"]++;
}
std::shared_ptr<Graph> with_counted_kernels(const Graph& graph) {
    std::lock_guard<std::recursive_mutex> held(lock);
    auto made = std::make_shared<Graph>(graph);
    graphs.push_back(made);
    return made;
}

}  // namespace fake

using namespace fake;

// ---- for tests

// Write a line for each call and each kernel, "call<TAB>name<TAB>times"; return the bytes needed.
// Kernels in a captured graph count each time that the graph is launched.
API int fake_gpu_report(char* text, int bytes) {
    std::lock_guard<std::recursive_mutex> held(lock);
    auto launches = fake::launches;
    for (auto& each : graphs)
        if (auto graph = each.lock())
            for (auto& kernel : graph->kernels)
                if (graph->times) launches[kernel.first] += kernel.second * graph->times;
    std::string all;
    for (auto& each : calls) all += "call\t" + each.first + "\t" + std::to_string(each.second) + "\n";
    for (auto& each : launches)
        all += "launch\t" + readable(each.first) + "\t" + std::to_string(each.second) + "\n";
    if (text) snprintf(text, bytes, "%s", all.c_str());
    return static_cast<int>(all.size()) + 1;
}
API void fake_gpu_reset() {
    std::lock_guard<std::recursive_mutex> held(lock);
    forget_failures();
    calls.clear();
    launches.clear();
    for (auto& each : graphs)
        if (auto graph = each.lock()) graph->times = 0;
}
// Count a launch of an operator that has no kernel here.
API void fake_gpu_launched(void* stream, const char* name) { launched(name, stream_of(stream)); }

// ---- kernels of torch, which are in its libraries

API void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*,
                                void*, void*, int*) {
    torch_kernels[function] = name;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return torch_kernel(kernel, stream);
}
API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return torch_kernel(function, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
    return torch_kernel(function, config->stream);
}

// kernel<<<grid, block, shared bytes, stream>>> pushes these, and its stub takes them for the launch.
namespace {
thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    void* stream;
} configuration;
}  // namespace
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
    configuration = {grid, block, shared_bytes, stream};
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *static_cast<void**>(stream) = configuration.stream;
    return cudaSuccess;
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    *blocks = 8;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                       unsigned) {
    *blocks = 8;
    return cudaSuccess;
}

// ---- the driver: kernels that come as machine code

API CUresult cuLibraryLoadData(CUlibrary* made, const void* code, CUjit_option*, void**, unsigned,
                               CUlibraryOption*, void**, unsigned) {
    auto* library = new Library;
    if (!strncmp(static_cast<const char*>(code), OWN, sizeof OWN - 1)) {
        library->handle = dlopen(static_cast<const char*>(code) + sizeof OWN - 1, RTLD_NOW | RTLD_LOCAL);
        if (!library->handle) {
            fprintf(stderr, "fake GPU: %s\n", dlerror());
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    *made = reinterpret_cast<CUlibrary>(library);
    return CUDA_SUCCESS;
}
API CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
API CUresult cuLibraryGetKernel(CUkernel* made, CUlibrary given, const char* name) {
    auto* library = reinterpret_cast<Library*>(given);
    auto* kernel = new Kernel{name};
    if (library->handle) {
        auto find = [&](const std::string& symbol) { return dlsym(library->handle, symbol.c_str()); };
        kernel->call = reinterpret_cast<decltype(kernel->call)>(find(std::string("call_") + name));
        auto bytes = reinterpret_cast<size_t (*)()>(find(std::string("bytes_") + name));
        kernel->trouble = reinterpret_cast<const char* (*)()>(find("trouble"));
        if (!kernel->call || !bytes) return CUDA_ERROR_NOT_FOUND;
        kernel->argument_bytes = bytes();
    }
    *made = reinterpret_cast<CUkernel>(kernel);
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}
API CUresult cuKernelGetAttribute(int* value, CUfunction_attribute, CUkernel, CUdevice) {
    *value = 0;
    return CUDA_SUCCESS;
}
API CUresult cuModuleLoadData(CUmodule* made, const void* code) {
    return cuLibraryLoadData(reinterpret_cast<CUlibrary*>(made), code, nullptr, nullptr, 0, nullptr, nullptr, 0);
}
API CUresult cuModuleLoadDataEx(CUmodule* made, const void* code, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(made, code);
}
API CUresult cuModuleLoad(CUmodule* made, const char*) {
    *made = reinterpret_cast<CUmodule>(new Library);
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return cuLibraryGetKernel(reinterpret_cast<CUkernel*>(function), reinterpret_cast<CUlibrary>(module), name);
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
             : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                    : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                            unsigned threads_y, unsigned threads_z, unsigned, CUstream stream,
                            void** parameters, void**) {
    return launch(reinterpret_cast<Kernel*>(function), x, y, z, threads_x, threads_y, threads_z, stream, parameters);
}
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned x, unsigned y, unsigned z,
                                       unsigned threads_x, unsigned threads_y, unsigned threads_z,
                                       unsigned, CUstream stream, void** parameters) {
    return launch(reinterpret_cast<Kernel*>(function), x, y, z, threads_x, threads_y, threads_z, stream, parameters);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
    return launch(reinterpret_cast<Kernel*>(function), config->gridDimX, config->gridDimY, config->gridDimZ,
                  config->blockDimX, config->blockDimY, config->blockDimZ, config->hStream, parameters);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    *blocks = 8;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    *clusters = 8;
    return CUDA_SUCCESS;
}
