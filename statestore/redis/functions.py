"""What Redis runs for the store and the directory: one library of functions.

Functions, not scripts: Redis keeps them in its AOF, so a restart does not lose them, and an ACL can
permit them and deny EVAL. Their names carry a digest of the code, so that workers of two versions
work on one Redis.

Redis does not undo what a function wrote before it failed. Hence all that may fail is checked
before the first write, and numbers come as text that is ready to be stored: Lua's own numbers
would lose digits. A function is given one key; all others begin with it, and so with its hash tag.

While Redis Cluster moves a slot, some of its keys are on one node and some on the other. A function
that met that would fail halfway, so each that writes looks first for a key that never exists: the
node that still has the slot then says that it may be elsewhere, and the function ends there. The
other node is asked nothing before all of the slot is there.
"""

from __future__ import annotations

import hashlib

from sublet.statestore.contract import LEAVING_MAX

EXPIRED_PER_COMMIT_MIN = 64
"""So many rows that have expired go with each commit, and more with one that brings more."""
EXPIRED_PER_COMMIT_MAX = 50_000

_CODE = """
local CHUNK = 4000
-- So many rows, at most, are entered in the index of keys because one of them is new.
local ROWS_CHUNK = 2 * 64
-- The operations of a commit, and in how many arguments each thing comes. Those in capitals are
-- commands, the others keep several keys in step.
local ROWS, ROWS_GONE, CELLS, CELLS_GONE = 'rows', 'rows_gone', 'cells', 'cells_gone'
local EMITTED, TRIMMED = 'emitted', 'trimmed'
local WIDTH = {
    HSET = 2, HDEL = 1, ZADD = 2, ZREM = 1, UNLINK = 0, ZREMRANGEBYSCORE = 2,
    [ROWS] = 2, [ROWS_GONE] = 1, [CELLS] = 2, [CELLS_GONE] = 1, [EMITTED] = 2, [TRIMMED] = 1}

-- Lua's stack bounds how many arguments a call may have.
local function many(command, key, args, first, last)
    local changed = 0
    while first <= last do
        local stop = math.min(first + CHUNK - 1, last)
        changed = changed + redis.call(command, key, unpack(args, first, stop))
        first = stop + 1
    end
    return changed
end

local function expiring_member(key, subkey)
    return #key .. ':' .. key .. subkey
end

local function drop_row(p, key)
    redis.call('HDEL', p .. ':state', key)
    if redis.call('SISMEMBER', p .. ':celled', key) == 0 then
        redis.call('ZREM', p .. ':keys', key)
    end
end

local function drop_cell(p, key, subkey)
    redis.call('HDEL', p .. ':cell:' .. key, subkey)
    if redis.call('EXISTS', p .. ':cell:' .. key) == 0 then
        redis.call('SREM', p .. ':celled', key)
        if redis.call('HEXISTS', p .. ':state', key) == 0 then
            redis.call('ZREM', p .. ':keys', key)
        end
    end
end

local function not_expiring(p, args, first, last, step, key)
    if redis.call('EXISTS', p .. ':expiring') == 0 then return end
    for at = first, last, step do
        local member
        if key then
            member = expiring_member(key, args[at])
        else
            member = expiring_member(args[at], '')
        end
        redis.call('ZREM', p .. ':expiring', member)
    end
end

local apply = {}

apply[ROWS] = function(p, _, args, first, last)
    not_expiring(p, args, first, last, 2, nil)
    for start = first, last, ROWS_CHUNK do
        local stop = math.min(start + ROWS_CHUNK - 1, last)
        if redis.call('HSET', p .. ':state', unpack(args, start, stop)) > 0 then
            local scored = {}
            for at = start, stop, 2 do
                scored[#scored + 1] = '0'
                scored[#scored + 1] = args[at]
            end
            redis.call('ZADD', p .. ':keys', unpack(scored))
        end
    end
end

apply[ROWS_GONE] = function(p, _, args, first, last)
    not_expiring(p, args, first, last, 1, nil)
    for at = first, last do drop_row(p, args[at]) end
end

apply[CELLS] = function(p, key, args, first, last)
    not_expiring(p, args, first, last, 2, key)
    many('HSET', p .. ':cell:' .. key, args, first, last)
    if redis.call('SADD', p .. ':celled', key) == 1 then
        redis.call('ZADD', p .. ':keys', '0', key)
    end
end

apply[CELLS_GONE] = function(p, key, args, first, last)
    not_expiring(p, args, first, last, 1, key)
    for at = first, last do drop_cell(p, key, args[at]) end
end

apply[EMITTED] = function(p, egress, args, first)
    redis.call('HSETNX', p .. ':egress_first', egress, args[first])
    redis.call('HSET', p .. ':egress_next', egress, args[first + 1])
end

apply[TRIMMED] = function(p, egress, args, first)
    local former = redis.call('HGET', p .. ':egress_first', egress)
    local after = redis.call('HGET', p .. ':egress_next', egress)
    if not former or not after then return end
    local kept = args[first]
    if tonumber(kept) > tonumber(after) then kept = after end
    if tonumber(kept) <= tonumber(former) then return end
    redis.call('HSET', p .. ':egress_first', egress, kept)
    redis.call('ZREMRANGEBYSCORE', p .. ':egress:' .. egress, '-inf', kept)
end

local function delete_expired(p, clock_ms, limit)
    local gone = redis.call(
        'ZRANGEBYSCORE', p .. ':expiring', '-inf', '(' .. clock_ms, 'LIMIT', '0', limit)
    for _, member in ipairs(gone) do
        local colon = string.find(member, ':', 1, true)
        local size = tonumber(string.sub(member, 1, colon - 1))
        local key = string.sub(member, colon + 1, colon + size)
        local subkey = string.sub(member, colon + size + 1)
        redis.call('ZREM', p .. ':expiring', member)
        if subkey == '' then drop_row(p, key) else drop_cell(p, key, subkey) end
    end
    local due = p .. ':due:idempotency'
    local answered = redis.call(
        'ZRANGEBYSCORE', due, '-inf', '(' .. clock_ms, 'LIMIT', '0', limit)
    many('ZREM', due, answered, 1, #answered)
    many('ZREM', p .. ':ids:idempotency', answered, 1, #answered)
    many('HDEL', p .. ':record:idempotency', answered, 1, #answered)
end

-- Fails on a node that is about to hand the slot of the key to another.
local function stay(key)
    redis.call('EXISTS', key .. ':never')
end

-- Between `start` and `stop`: token, epoch, index before, index, commit id, clock_ms, then
-- operations: name, of what, how many arguments, the arguments.
local HEADER = 6

-- Which keys an operation touches, and their types; of those with a colon at the end, the one that
-- is named by what it is of.
local STATE, INDEX, CELLED = {':state', 'hash'}, {':keys', 'zset'}, {':celled', 'set'}
local CELL, ENTRIES = {':cell:', 'hash'}, {':egress:', 'zset'}
local FIRST, NEXT = {':egress_first', 'hash'}, {':egress_next', 'hash'}
local HASH, SORTED = {':', 'hash'}, {':', 'zset'}
local TOUCHED = {
    HSET = {HASH}, HDEL = {HASH}, ZADD = {SORTED}, ZREM = {SORTED}, UNLINK = {},
    ZREMRANGEBYSCORE = {SORTED}, [ROWS] = {STATE, INDEX}, [ROWS_GONE] = {STATE, INDEX, CELLED},
    [CELLS] = {CELL, CELLED, INDEX}, [CELLS_GONE] = {CELL, CELLED, INDEX, STATE},
    [EMITTED] = {FIRST, NEXT}, [TRIMMED] = {FIRST, NEXT, ENTRIES}}

-- Fails if somebody else has written something of another type there: later would be too late.
local function check_keys(p, name, of, seen)
    for _, touched in ipairs(TOUCHED[name]) do
        local suffix, type = touched[1], touched[2]
        if suffix == ':' then
            suffix = of
        elseif string.sub(suffix, -1) == ':' then
            suffix = suffix .. of
        end
        if not seen[suffix] then
            seen[suffix] = true
            local found = redis.call('TYPE', p .. suffix).ok
            if found ~= type and found ~= 'none' then
                error(p .. suffix .. ' is a ' .. found .. '; needed: ' .. type)
            end
        end
    end
end

-- Whose data is gone is told what is there: a token that is not there although no later owner can
-- have replaced it, or an index before that of a commit that was done.
local function commit_one(p, args, start, stop)
    stay(p)
    local stored = redis.call('HMGET', p, 'token', 'epoch', 'index', 'commit')
    local token, epoch, before = args[start], args[start + 1], args[start + 2]
    local is_taken = token ~= '' and stored[1] ~= token
    if is_taken and (tonumber(stored[2]) or 0) <= tonumber(epoch) then
        return 'lost epoch ' .. (stored[2] or 'none')
    end
    if is_taken or stored[2] ~= epoch then return 'fenced' end
    if stored[3] == args[start + 3] and stored[4] == args[start + 4] then return 'duplicate' end
    if tonumber(stored[3]) < tonumber(before) then return 'lost index ' .. stored[3] end
    if stored[3] ~= before then return 'gap' end
    local at, seen = start + HEADER, {}
    while at <= stop do
        local width, count = WIDTH[args[at]], tonumber(args[at + 2])
        if not width or not count or (width > 0 and (count < width or count % width ~= 0)) then
            error('operation at ' .. at .. ' is none')
        end
        check_keys(p, args[at], args[at + 1], seen)
        at = at + 3 + count
    end
    if at ~= stop + 1 then error('the commit is cut off') end

    -- What has expired may go whatever becomes of the commit. A row that expires comes in four
    -- arguments or more: twice as many go as come, so that none are left behind for ever.
    local clock_ms = args[start + 5]
    local limit = EXPIRED_MIN + math.floor((stop - start) / 2)
    delete_expired(p, clock_ms, tostring(math.min(limit, EXPIRED_MAX)))
    at = start + HEADER
    while at <= stop do
        local name, count = args[at], tonumber(args[at + 2])
        local first, last = at + 3, at + 2 + count
        if apply[name] then
            apply[name](p, args[at + 1], args, first, last)
        elseif name == 'UNLINK' or name == 'ZREMRANGEBYSCORE' then
            redis.call(name, p .. args[at + 1], unpack(args, first, last))
        else
            many(name, p .. args[at + 1], args, first, last)
        end
        at = last + 1
    end
    redis.call(
        'HSET', p, 'index', args[start + 3], 'commit', args[start + 4], 'clock_ms', clock_ms)
    return 'done'
end

-- ARGV: for each key how many arguments its commit has, and these. Each commit stands alone: one
-- that fails does not keep the others from being applied.
local function commit(keys, args)
    local outcomes, at = {}, 1
    for number, p in ipairs(keys) do
        local stop = at + tonumber(args[at])
        local is_sound, outcome = pcall(commit_one, p, args, at + 1, stop)
        if not is_sound then
            -- Redis raises a table, Lua a text.
            local reason = type(outcome) == 'table' and outcome.err or outcome
            outcome = 'failed: ' .. tostring(reason)
        end
        outcomes[number] = outcome
        at = stop + 1
    end
    return outcomes
end

-- ARGV: token, worker. The token is new each time: if Redis has gone back to older data, an epoch
-- is given twice, and a token is not.
local function acquire(keys, args)
    local p = keys[1]
    stay(p)
    redis.call('HINCRBY', p, 'epoch', 1)
    redis.call('HSETNX', p, 'index', '0')
    redis.call('HSETNX', p, 'clock_ms', '0')
    redis.call('HSET', p, 'token', args[1], 'owner', args[2])
    return redis.call('HMGET', p, 'epoch', 'index', 'clock_ms')
end

-- Reads fill an answer until there is no room in it, in bytes, and say how far they came; who asked
-- goes on from there. Redis does nothing else meanwhile, and an answer has to come in time. Small
-- things cost time, too, so each takes some room; values are read a few at once, hence no more than
-- a few are beyond the room.
local ROOM_EACH = 500
local VALUES_AT_ONCE = 8
local IDS_AT_ONCE = 500
local LAST_IDS = 32

-- Appends what a hash has under names, in their order, for as long as there is room. Returns the
-- room that is left.
local function add_values(found, hash, names, first, last, room)
    local count = #found
    while first <= last and room > 0 do
        local stop = math.min(first + VALUES_AT_ONCE - 1, last)
        local some = redis.call('HMGET', hash, unpack(names, first, stop))
        for at = 1, stop - first + 1 do
            local value = some[at]
            found[count + at] = value
            room = room - ROOM_EACH - (value and #value or 0)
        end
        count = count + stop - first + 1
        first = stop + 1
    end
    return room
end

-- ARGV: room, which hash, names. Returns the values of the first names, of as many as it has.
local function get(keys, args)
    local found = {}
    add_values(found, keys[1] .. args[2], args, 3, #args, tonumber(args[1]))
    return found
end

-- ARGV: room, keys. Returns the rows without subkey of the first keys, of as many as it has; then,
-- of each of these that has others, its name, all its subkeys and the rows of the first of them.
local function load(keys, args)
    local p, room, rows = keys[1], tonumber(args[1]), {}
    local found, are_celled = {rows}, nil
    if redis.call('EXISTS', p .. ':celled') == 1 then
        are_celled = redis.call('SMISMEMBER', p .. ':celled', unpack(args, 2))
    end
    local at = 2
    while at <= #args and room > 0 do
        local stop = math.min(at + VALUES_AT_ONCE - 1, #args)
        room = add_values(rows, p .. ':state', args, at, stop, room)
        for each = at, stop do
            if are_celled and are_celled[each - 1] == 1 then
                local cells = p .. ':cell:' .. args[each]
                local subkeys, some = redis.call('HKEYS', cells), {}
                room = add_values(some, cells, subkeys, 1, #subkeys, room)
                found[#found + 1] = {args[each], subkeys, some}
            end
        end
        at = stop + 1
    end
    return found
end

-- ARGV: room, kind, until_ms, limit, then ids and times that were read before: what is behind the
-- last of them that is still there is read. Returns ids, the records of the first of them and, if
-- there may be more, the last ids of these with their times.
local function due(keys, args)
    local index, hash = keys[1] .. ':due:' .. args[2], keys[1] .. ':record:' .. args[2]
    local rank = 0
    for at = #args - 1, 5, -2 do
        if redis.call('ZSCORE', index, args[at]) == args[at + 1] then
            rank = redis.call('ZRANK', index, args[at]) + 1
            break
        end
    end
    local found = {}
    local ids = redis.call(
        'ZRANGEBYSCORE', index, '-inf', '(' .. args[3], 'LIMIT', rank, args[4])
    add_values(found, hash, ids, 1, #ids, tonumber(args[1]))
    if #found == #ids and #ids < tonumber(args[4]) then return {ids, found, {}} end
    local last = {}
    for at = math.max(1, #found - LAST_IDS + 1), #found do
        last[#last + 1] = ids[at]
        last[#last + 1] = redis.call('ZSCORE', index, ids[at])
    end
    return {ids, found, last}
end

-- ARGV: room, then kinds, each with where to begin, by id. Returns of the first kinds, of as many
-- as it begins with, where to go on (nothing if that was all), ids, records. Not by HSCAN: a cursor
-- means nothing to a Redis that was restarted, or to another one that has the slot now.
local function records(keys, args)
    local p, room, found = keys[1], tonumber(args[1]), {}
    for at = 2, #args, 2 do
        if room <= 0 then break end
        local index, hash = p .. ':ids:' .. args[at], p .. ':record:' .. args[at]
        local start, ids, some = args[at + 1], {}, {}
        while start ~= '' and room > 0 do
            local page = redis.call('ZRANGEBYLEX', index, start, '+', 'LIMIT', '0', IDS_AT_ONCE)
            room = add_values(some, hash, page, 1, #page, room)
            local count = #some - #ids
            for each = 1, count do ids[#ids + 1] = page[each] end
            if count == #page and count < IDS_AT_ONCE then
                start = ''
            else
                start = '(' .. ids[#ids]
            end
        end
        found[#found + 1] = {start, ids, some}
    end
    return found
end

-- ARGV: room, limit, then sorted sets, each with the score after which to begin. Returns of the
-- first sets, of as many as it begins with, the score to go on after (nothing if that was all) and
-- members. These are as large as a commit, so they are read one by one.
local function entries(keys, args)
    local p, room, limit, found = keys[1], tonumber(args[1]), tonumber(args[2]), {}
    for at = 3, #args, 2 do
        if room <= 0 or limit <= 0 then break end
        local name, after, some = p .. args[at], args[at + 1], {}
        local rank = redis.call('ZCOUNT', name, '-inf', after)
        local count = redis.call('ZCARD', name)
        while rank < count and room > 0 and limit > 0 do
            local entry = redis.call('ZRANGE', name, rank, rank, 'WITHSCORES')
            some[#some + 1], after = entry[1], entry[2]
            room, limit, rank = room - ROOM_EACH - #entry[1], limit - 1, rank + 1
        end
        found[#found + 1] = {rank < count and after or '', some}
    end
    return found
end

local function version_of(d)
    return redis.call('GET', d .. ':version') or '0'
end

-- ARGV: the stamp that the caller has functions and placement of.
local function view(keys, args)
    local d = keys[1]
    local stamp = redis.call('GET', d .. ':stamp') or '0'
    local found = {
        version_of(d), stamp,
        redis.call('HGETALL', d .. ':members'), redis.call('HGETALL', d .. ':beats'),
        redis.call('HMGET', d .. ':control', 'holder', 'token', 'version')}
    if stamp ~= args[1] then
        found[6] = redis.call('HGETALL', d .. ':functions')
        found[7] = redis.call('HGETALL', d .. ':placement')
        found[8] = redis.call('LRANGE', d .. ':leaving', 0, -1)
    end
    return found
end

local function milliseconds(time)
    return time[1] .. string.format('%03d', math.floor(tonumber(time[2]) / 1000))
end

-- A version is no less than the time in milliseconds, so that versions go on growing even if the
-- data was lost, or went back: who knows a later one believes no earlier one. If the clock has gone
-- back as well, a version comes twice, and a stamp does not: unless it has to be `above` one.
local function changed(d, above)
    local time = redis.call('TIME')
    local now = milliseconds(time)
    local version = redis.call('INCR', d .. ':version')
    if version < tonumber(now) then
        version = now
        redis.call('SET', d .. ':version', now)
    end
    if above and tonumber(version) <= tonumber(above) then
        version = string.format('%.0f', tonumber(above) + 1)
        redis.call('SET', d .. ':version', version)
    end
    redis.call('SET', d .. ':stamp', version .. ' ' .. time[1] .. ' ' .. time[2])
    redis.call('PUBLISH', d .. ':changed', version)
end

-- ARGV: expected version, id, member, the same if it is to leave, first beat, functions and their
-- partition counts.
local function join(keys, args)
    local d = keys[1]
    stay(d)
    if version_of(d) ~= args[1] then return false end
    if redis.call('HEXISTS', d .. ':beats', args[2]) == 1 then
        redis.call('HINCRBY', d .. ':beats', args[2], 1)
    else
        redis.call('HSET', d .. ':beats', args[2], args[5])
    end
    local is_leaving = redis.call('LPOS', d .. ':leaving', args[2])
    redis.call('HSET', d .. ':members', args[2], is_leaving and args[4] or args[3])
    many('HSET', d .. ':functions', args, 6, #args)
    changed(d)
    return view(keys, {''})
end

-- ARGV: id, known version.
local function beat(keys, args)
    local d = keys[1]
    stay(d)
    if redis.call('HEXISTS', d .. ':members', args[1]) == 0 then return false end
    redis.call('HINCRBY', d .. ':beats', args[1], 1)
    return view(keys, {args[2]})
end

-- ARGV: expected version, above which the next is to be, how many are removed, their ids,
-- partitions and their workers.
local function place(keys, args)
    local d, removed = keys[1], tonumber(args[3])
    stay(d)
    if version_of(d) ~= args[1] then return false end
    if removed > 0 then
        many('HDEL', d .. ':members', args, 4, 3 + removed)
        many('HDEL', d .. ':beats', args, 4, 3 + removed)
    end
    redis.call('DEL', d .. ':placement')
    many('HSET', d .. ':placement', args, 4 + removed, #args)
    changed(d, args[2])
    return view(keys, {''})
end

-- ARGV: expected version, function, its partitions.
local function forget(keys, args)
    local d = keys[1]
    stay(d)
    if version_of(d) ~= args[1] then return false end
    redis.call('HDEL', d .. ':functions', args[2])
    many('HDEL', d .. ':placement', args, 3, #args)
    changed(d)
    return view(keys, {''})
end

-- ARGV: id, member, the controller's token if it is one that asks, expected version if there is.
local function drain(keys, args)
    local d = keys[1]
    stay(d)
    if redis.call('HEXISTS', d .. ':members', args[1]) == 0 then return false end
    if args[3] ~= '' and args[3] ~= redis.call('HGET', d .. ':control', 'token') then
        return false
    end
    if args[4] ~= '' and args[4] ~= version_of(d) then return false end
    redis.call('HSET', d .. ':members', args[1], args[2])
    redis.call('LREM', d .. ':leaving', 0, args[1])
    redis.call('RPUSH', d .. ':leaving', args[1])
    redis.call('LTRIM', d .. ':leaving', -LEAVING_MAX, -1)
    changed(d)
    return view(keys, {''})
end

-- ARGV: id.
local function leave(keys, args)
    local d = keys[1]
    stay(d)
    local wish = redis.call('LREM', d .. ':leaving', 0, args[1])
    if redis.call('HDEL', d .. ':members', args[1]) + wish == 0 then return 0 end
    redis.call('HDEL', d .. ':beats', args[1])
    local placement = redis.call('HGETALL', d .. ':placement')
    for at = 1, #placement, 2 do
        if placement[at + 1] == args[1] then
            redis.call('HDEL', d .. ':placement', placement[at])
        end
    end
    changed(d)
    return 1
end

-- Who leads is in one hash with the plan: holder, token; version, token and number of the plan, and
-- what it says. Tokens and the plan's versions are no less than the time, as versions are.
-- ARGV: id, expected token, above which the next is to be, known version.
local function lead(keys, args)
    local d = keys[1]
    stay(d)
    if redis.call('HEXISTS', d .. ':members', args[1]) == 0 then return false end
    if (redis.call('HGET', d .. ':control', 'token') or '0') ~= args[2] then return false end
    local least = math.max(
        tonumber(args[2]) + 1, tonumber(args[3]) + 1, tonumber(milliseconds(redis.call('TIME'))))
    redis.call(
        'HSET', d .. ':control', 'holder', args[1], 'token', string.format('%.0f', least))
    return view(keys, {args[4]})
end

local function plan(keys, args)
    return redis.call(
        'HMGET', keys[1] .. ':control', 'version', 'plan_token', 'number', 'plan')
end

-- ARGV: token, number, what it says.
local function replan(keys, args)
    local d = keys[1]
    stay(d)
    local stored = redis.call(
        'HMGET', d .. ':control', 'token', 'plan_token', 'number', 'version')
    if stored[1] ~= args[1] then return false end
    if stored[2] == args[1] and tonumber(stored[3]) >= tonumber(args[2]) then return false end
    local least = math.max(
        (tonumber(stored[4]) or 0) + 1, tonumber(milliseconds(redis.call('TIME'))))
    local version = string.format('%.0f', least)
    redis.call(
        'HSET', d .. ':control', 'version', version, 'plan_token', args[1], 'number', args[2],
        'plan', args[3])
    return version
end

local function cluster_key(keys, args)
    local d = keys[1]
    stay(d)
    redis.call('HSETNX', d .. ':control', 'cluster_key', args[1])
    return redis.call('HGET', d .. ':control', 'cluster_key')
end

local function register(name, callback, ...)
    redis.register_function{
        function_name = 'sublet_' .. name .. '_DIGEST', callback = callback, flags = {...}}
end

register('commit', commit)
register('acquire', acquire)
register('load', load, 'no-writes')
register('get', get, 'no-writes')
register('due', due, 'no-writes')
register('records', records, 'no-writes')
register('entries', entries, 'no-writes')
register('view', view, 'no-writes')
register('join', join)
register('beat', beat)
register('place', place)
register('forget', forget)
register('drain', drain)
register('leave', leave)
register('lead', lead)
register('plan', plan, 'no-writes')
register('replan', replan)
register('cluster_key', cluster_key)
"""
for _name, _number in {
    "EXPIRED_MIN": EXPIRED_PER_COMMIT_MIN,
    "EXPIRED_MAX": EXPIRED_PER_COMMIT_MAX,
    "LEAVING_MAX": LEAVING_MAX,
}.items():
    _CODE = _CODE.replace(_name, str(_number))

_DIGEST = hashlib.sha256(_CODE.encode()).hexdigest()[:12]

LIBRARY_NAME = f"sublet_{_DIGEST}"
LIBRARY = f"#!lua name={LIBRARY_NAME}\n" + _CODE.replace("DIGEST", _DIGEST)
"""What FUNCTION LOAD is given."""

READ_KEYS_MAX = 1_000
"""So many keys or records are asked for in one call, at most: Lua's stack is bounded."""


def function_name(name: str) -> str:
    """Return how Redis knows a function of the library."""
    return f"sublet_{name}_{_DIGEST}"
