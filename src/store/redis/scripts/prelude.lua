-- What every script begins with: the server's time, the head of the id's state, and errors that say what was done.
--
-- KEYS[1]  a hash; field "h" is the head, and each rule has a field of its own, named by the rule's key
-- KEYS[2]  a sorted set of leases: token by end; only given to scripts that end, take or renew leases
-- ARGV[1]  not-after: the last time of the server's clock at which this may take effect; 0 if any will do
-- ARGV[2]  the numbers of the ask
--
-- Numbers are microseconds, or counts, as big-endian doubles: all stay below 2^53 and are exact. Times become text by
-- "%.0f" only, for ".." keeps 14 digits.
--
-- A reply is TIME, a byte (0 done, 1 stale: nothing changed) and what the script adds. An error is returned, never raised,
-- and only while nothing is spent.
local call, pcall, pack, unpack, spread = redis.call, redis.pcall, struct.pack, struct.unpack, unpack
local floor, ceil, format, byte = math.floor, math.ceil, string.format, string.byte
local key, leases = KEYS[1], KEYS[2]

local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]
local not_after = unpack('>d', ARGV[1])
local stale = not_after > 0 and time > not_after
