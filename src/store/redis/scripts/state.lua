-- What follows the prelude: the head of the id's state, the leases, and how both are written.
--
-- The head. All of its times are of the id's own clock, `now`, which never goes back: when the server's does, `skew` makes
-- up for it, so that debts, leases and pauses keep their length. The hash goes at its deadline, which only grows; the
-- leases go at theirs, which is never before the last of them ends.
local last, skew, pause, fence, deadline, leases_deadline, wanted = 0, 0, 0, 0, 0, 0, 0
local now, stepped, expires = time, false, false

local function corrupt(name, what)
  return redis.error_reply('CORRUPT key ' .. name:sub(1, 256) .. ': ' .. what)
end

-- What a command refused, as an error of the script. Redis 6 puts the place in the script before it.
local function refused(reply, name)
  local text = reply.err:gsub('^@[%w_]+: ?%d+: ?%-?', '')
  if text:find('^WRONGTYPE') then
    return corrupt(name, 'it is of another type than this key of a valve; delete or rename it')
  end
  return redis.error_reply(text)
end

-- Takes the head in. Gives an error, or nil.
local function open(head)
  if head then
    if #head ~= 57 or byte(head) ~= 1 then
      return corrupt(key, 'field h is not a head of version 1')
    end
    local version
    version, last, skew, pause, fence, deadline, leases_deadline, wanted = unpack('>Bddddddd', head)
  end
  now = time + skew
  if now < last then
    skew, now, stepped = skew + last - now, last, true
  end
end

-- Has the hash live until then: a second longer, so that its expiry is not to be set with every call.
local function keep(time_of_end)
  if time_of_end > deadline then
    deadline, expires = time_of_end + 1000000, true
  end
end

-- Milliseconds from now until then, for PEXPIRE: never so few that the key would go at once.
local function left(time_of_end)
  local ms = ceil((time_of_end - now) / 1000)
  return format('%.0f', ms < 1 and 1 or ms)
end

-- Gives an error, or what the command says. A server out of memory refuses a command that may need more, but only as the
-- first write of a script: then another comes first, which removes a field that nothing has.
local function write(command)
  local done = pcall(spread(command))
  if type(done) == 'table' and done.err:find('OOM', 1, true) and type(pcall('HDEL', key, '-')) == 'number' then
    done = pcall(spread(command))
  end
  return done
end

-- Writes the head, and the fields and values that `writes` has from its fifth on. Gives an error, or nil.
local function save(head, writes)
  if expires then
    -- Before anything is spent, for it may not be allowed to this user. On a key that is still to come it does nothing.
    local done = pcall('PEXPIRE', key, left(deadline))
    if type(done) == 'table' then return refused(done, key) end
  end
  writes[1], writes[2], writes[3] = 'HSET', key, 'h'
  writes[4] = pack('>Bddddddd', 1, now, skew, pause, fence, deadline, leases_deadline, wanted)
  local done = write(writes)
  if type(done) == 'table' then return refused(done, key) end
  if not head then call('PEXPIRE', key, left(deadline)) end
end

-- How many leases are in the set, and how many of these have ended but are not cleared away yet.
local card, ended = 0, 0

-- Looks at the leases and clears away up to 256 that have ended. Gives an error, or nil.
local function purge()
  card = pcall('ZCARD', leases)
  if type(card) == 'table' then return refused(card, leases) end
  if card == 0 then return end
  if leases_deadline == 0 then
    -- The head was lost, the leases were not.
    local highest = pcall('ZREVRANGE', leases, 0, 0, 'WITHSCORES')
    if highest.err then return refused(highest, leases) end
    leases_deadline = tonumber(highest[2])
  end
  ended = pcall('ZCOUNT', leases, '-inf', format('%.0f', now))
  if type(ended) == 'table' then return refused(ended, leases) end
  -- None would be 0 to -1, which is all of them.
  if ended == 0 then return end
  local purged = pcall('ZREMRANGEBYRANK', leases, 0, (ended > 256 and 256 or ended) - 1)
  if type(purged) == 'table' then return refused(purged, leases) end
  card, ended = card - purged, ended - purged
end

-- Has the set of leases live as long as one that was just put into it. Gives an error, or nil.
local function keep_leases(time_of_end)
  if card == 0 or time_of_end > leases_deadline then
    leases_deadline = time_of_end + 1000000
    local done = pcall('PEXPIRE', leases, left(leases_deadline))
    if type(done) == 'table' then return refused(done, leases) end
  end
end

-- Tells those who listen. Gives 2 if this user may not, which is no reason to fail: they ask again by themselves.
local function publish(kind, channel, id)
  return type(pcall('PUBLISH', channel, kind .. id)) == 'table' and 2 or 0
end
