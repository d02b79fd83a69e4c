// Calls into llama.cpp that throw where a device fails or memory is short: Rust cannot catch what C++ throws.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

struct llama_context;

// As llama.h of the pinned version declares it; the Rust side compares the size.
struct llama_batch {
    int32_t n_tokens;
    int32_t * token;
    float * embd;
    int32_t * pos;
    int32_t * n_seq_id;
    int32_t ** seq_id;
    int8_t * logits;
};

static_assert(sizeof(llama_batch) == 56, "llama_batch has another layout");

extern "C" int32_t llama_decode(llama_context * context, llama_batch batch);
extern "C" void llama_synchronize(llama_context * context);

// Computes a batch to its end. Returns what llama_decode does, or INT32_MIN if something was thrown: then `why`, of `room` bytes,
// holds the reason, which ends with a zero.
extern "C" int32_t camshaft_decode(llama_context * context, const llama_batch * batch, char * why, size_t room) {
    const char * reason = "an exception of unknown type";
    try {
        const int32_t code = llama_decode(context, *batch);
        llama_synchronize(context);
        return code;
    } catch (const std::exception & exception) {
        reason = exception.what();
        std::strncpy(why, reason, room - 1);
    } catch (...) {
        std::strncpy(why, reason, room - 1);
    }
    why[room - 1] = 0;
    return INT32_MIN;
}
