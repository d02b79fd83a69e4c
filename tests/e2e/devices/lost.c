/* Stands before Vulkan's loader (LD_PRELOAD): from the moment on that the file DEVICE_LOST_IF is there, the device is lost.
   A process that allocates more than DEVICE_BYTES on it is told that there is no more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VK_ERROR_OUT_OF_DEVICE_MEMORY (-2)
#define VK_ERROR_DEVICE_LOST (-4)

typedef void (*function)(void);
typedef function (*lookup)(void *, const char *);
typedef int (*submission)(void *, unsigned, const void *, void *);

/* VkMemoryAllocateInfo */
struct wanted {
    int type;
    const void *next;
    unsigned long long bytes;
};
typedef int (*allocation)(void *, const struct wanted *, const void *, void *);

static lookup of_instance, of_device;
static submission real_submit;
static allocation real_allocate;
static unsigned long long allocated;

static int allocate(void *device, const struct wanted *wanted, const void *allocator, void *memory) {
    const char *most = getenv("DEVICE_BYTES");
    if (most && allocated + wanted->bytes > strtoull(most, NULL, 10)) {
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    allocated += wanted->bytes;
    return real_allocate(device, wanted, allocator, memory);
}

static int submit(void *queue, unsigned count, const void *work, void *fence) {
    const char *file = getenv("DEVICE_LOST_IF");
    if (file && access(file, F_OK) == 0) {
        return VK_ERROR_DEVICE_LOST;
    }
    return real_submit(queue, count, work, fence);
}

static function replaced(function found, const char *name) {
    if (found && strcmp(name, "vkQueueSubmit") == 0) {
        real_submit = (submission)found;
        return (function)submit;
    }
    if (found && strcmp(name, "vkAllocateMemory") == 0) {
        real_allocate = (allocation)found;
        return (function)allocate;
    }
    return found;
}

static function device_function(void *device, const char *name) {
    return replaced(of_device(device, name), name);
}

function vkGetInstanceProcAddr(void *instance, const char *name) {
    if (!of_instance) {
        of_instance = (lookup)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    }
    function found = of_instance(instance, name);
    if (found && strcmp(name, "vkGetInstanceProcAddr") == 0) {
        return (function)vkGetInstanceProcAddr;
    }
    if (found && strcmp(name, "vkGetDeviceProcAddr") == 0) {
        of_device = (lookup)found;
        return (function)device_function;
    }
    return replaced(found, name);
}

/* Some programs do not link the loader, and look for its function. */
void *dlsym(void *library, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        *(void **)&real = found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    }
    void *found = real(library, name);
    if (found && strcmp(name, "vkGetInstanceProcAddr") == 0 && found != (void *)vkGetInstanceProcAddr) {
        of_instance = (lookup)found;
        return (void *)vkGetInstanceProcAddr;
    }
    return found;
}
