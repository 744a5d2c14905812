-- Tries each command that the other scripts use, so that a missing right is known before a job needs it.
--
-- KEYS[1]  a hash, KEYS[2] a sorted set, both its own: they are gone afterwards
-- ARGV[1]  not-after: none, for this changes nothing
-- ARGV[2]  the channel
local key, leases = KEYS[1], KEYS[2]
local time

for _, command in ipairs({
  {'TIME'},
  {'ZREMRANGEBYRANK', leases, 1, 0},
  {'HDEL', key, 'a'},
  {'ZADD', leases, 1, 'a'},
  {'PEXPIRE', leases, 1000},
  {'ZCARD', leases},
  {'ZCOUNT', leases, 0, 1},
  {'ZMSCORE', leases, 'a'},
  {'ZREVRANGE', leases, 0, 0},
  {'ZREM', leases, 'a'},
  {'HSET', key, 'a', '1'},
  {'PEXPIRE', key, 1},
  {'HGET', key, 'a'},
  {'HMGET', key, 'a'},
  {'PUBLISH', ARGV[2], ''},
}) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    -- Redis 6 puts the place in the script before it.
    local text = reply.err:gsub('^@[%w_]+: ?%d+: ?%-?', '')
    return redis.error_reply(text .. ' (at ' .. command[1] .. ')')
  end
  time = time or reply
end

return struct.pack('>dB', time[1] * 1000000 + time[2], 0)
