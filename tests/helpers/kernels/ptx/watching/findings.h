/* What was found, once for each pair of instructions and each place. */
#pragma once
#include <map>
#include <tuple>

#include "shadow.h"

enum What {
    OUTSIDE, MISALIGNED, INTO_INPUT, RACE, FLYING, NOT_RUNNING, ENDED, UNWRITTEN,
    ELSEWHERE, MISSING, NOT_ARRIVED
};
constexpr int NOWHERE = -3, OWN_SHARED = -1, OTHER_SHARED = -2;

/* As tests/helpers/kernels/ptx/watched.py reads it. */
struct Finding {
    int32_t what, space, kind, other_kind, region;
    uint32_t where, block, thread, bytes, other_where, other_block, other_warp, other_mask;
    uint32_t came, members, times;
    int64_t offset;
};

namespace watching {

inline Thread *current; /* that runs */
inline std::vector<Finding> found;
inline std::map<std::tuple<int, uint32_t, uint32_t, int>, size_t> met;

inline Finding &say(What what, uint32_t where, uint32_t other_where, int region)
{
    auto key = std::make_tuple((int)what, where, other_where, region);
    auto at = met.find(key);
    if (at == met.end()) {
        at = met.emplace(key, found.size()).first;
        Finding one = {};
        one.what = what, one.where = where, one.other_where = other_where;
        one.region = region;
        if (current)
            one.block = current->block, one.thread = current->index;
        found.push_back(one);
    }
    found[at->second].times++;
    return found[at->second];
}

} // namespace watching
