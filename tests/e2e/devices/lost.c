/* Stands before Vulkan's loader (LD_PRELOAD): from the moment on that the file DEVICE_LOST_IF is there, the device is lost. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VK_ERROR_DEVICE_LOST (-4)

typedef void (*function)(void);
typedef function (*lookup)(void *, const char *);
typedef int (*submission)(void *, unsigned, const void *, void *);

static lookup of_instance, of_device;
static submission real_submit;

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
