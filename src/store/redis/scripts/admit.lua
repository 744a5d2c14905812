-- Admits the longest prefix of the jobs that fits under the pause, the slots and every rule, and spends for exactly those.
--
-- ARGV[2]  rules, jobs, the cost if all have the same (else 0), the limit on slots (-1: none needed), the length of a
--          lease, the floor of the fencing tokens, releases, 1 if refused jobs wait;
--          for each GCRA rule: a, b and d of the emission interval a + b/d, the whole and the numerator of the burst's
--          tolerance, the burst; for each window: limit, interval, 0, 0, 0, 0;
--          the costs, if they differ
-- ARGV     the keys of the rules; channel, id and the released tokens, if any; the tokens to take, if slots are needed
-- reply    jobs admitted; now; and unless that is all there is to say: the first fencing token, or 0; the rule that refuses
--          the next job, or -1, and how long; what is left of the pause; flags: 1 no slot is free, 2 a notice could not be
--          sent
local ask = ARGV[2]
local rules, jobs, equal, limit, ttl, least, releases, waits, numbers = unpack('>dddddddd', ask)
-- Where the channel is, if anybody is to be told, and what comes before the tokens to take.
local told = 3 + rules
local taken = releases > 0 and told + 1 + releases or told - 1

local freed = 0
if releases > 0 then
  freed = pcall('ZREM', leases, spread(ARGV, told + 2, told + 1 + releases))
  if type(freed) == 'table' then return refused(freed, leases) end
end
if stale and freed == 0 then return pack('>dB', time, 1) end

local state = read or pcall('HMGET', key, 'h', spread(ARGV, 3, 2 + rules))
if state.err then return refused(state, key) end
local head = state[1]
local failure = open(head)
if failure then return failure end

local granted, first, blocking, hint, flags = 0, 0, -1, 0, 0
local paused = 0
local changed = stepped

local writes = {false, false, false, false}

if stale then
  changed = false
elseif now < pause then
  paused = pause - now
else
  -- The slots: how many jobs may start at most.
  local free = jobs
  if limit >= 0 then
    failure = purge()
    if failure then return failure end
    free = limit - (card - ended)
    if free > jobs then free = jobs elseif free < 0 then free = 0 end
  end

  -- The rules: how much cost each has room for, exactly. Times are pairs of a whole and a numerator over d.
  local room = math.huge
  local rooms, starts, parts, stepped_down = {}, {}, {}, {}
  for rule = 1, rules do
    local a, b, d, tolerance, tolerance_part, burst = unpack('>dddddd', ask, numbers + 48 * (rule - 1))
    local stored, units = state[rule + 1], nil
    if d == 0 then
      local interval, count = b, 0
      local current = time - time % interval
      if stored then
        if #stored ~= 17 or byte(stored) ~= 2 then
          return corrupt(key, 'field ' .. ARGV[2 + rule] .. ' is not a window of version 1')
        end
        local version, start, so_far = unpack('>Bdd', stored)
        if start >= current then count = so_far end
        -- The server's clock stepped back: a later window becomes the current one, its count included.
        if start > current then stepped_down[rule] = true end
      end
      starts[rule], parts[rule], units = current, count, a - count
    else
      local start, part = now, 0
      if stored then
        if #stored ~= 25 or byte(stored) ~= 1 then
          return corrupt(key, 'field ' .. ARGV[2 + rule] .. ' is not a GCRA state of version 1')
        end
        local version, tat, numerator, denominator = unpack('>Bddd', stored)
        if denominator ~= d and numerator > 0 then
          -- ceil(numerator * d / denominator) by halves of 16 bits: the product may need 64.
          local high = floor(numerator / 65536)
          local product = high * d
          local quotient = floor(product / denominator)
          product = (product - quotient * denominator) * 65536 + (numerator - high * 65536) * d
          numerator = quotient * 65536 + ceil(product / denominator)
          if numerator >= d then tat, numerator = tat + 1, numerator - d end
        end
        if tat >= now then start, part = tat, numerator end
      end
      starts[rule], parts[rule] = start, part
      local whole, fraction = now + tolerance - start, tolerance_part - part
      if fraction < 0 then whole, fraction = whole - 1, fraction + d end
      if whole < 0 then
        units = -1
      elseif d == 1 then
        units = floor(whole / a)
      else
        -- The quotient of such large numbers may be one off; the products are exact.
        units = floor((whole * d + fraction) / (a * d + b))
        local carried = floor(units * b / d)
        local over = units * a + carried - whole
        if over > 0 or over == 0 and units * b - carried * d > fraction then
          units = units - 1
        elseif units < burst then
          carried = floor((units + 1) * b / d)
          over = (units + 1) * a + carried - whole
          if over < 0 or over == 0 and (units + 1) * b - carried * d <= fraction then units = units + 1 end
        end
      end
    end
    rooms[rule] = units
    if units < room then room = units end
  end

  local total, cost = 0, equal
  if equal > 0 then
    granted = floor(room / equal)
    if granted > free then granted = free elseif granted < 0 then granted = 0 end
    total = granted * equal
  else
    local position = numbers + 48 * rules
    while granted < jobs do
      cost = unpack('>d', ask, position + 8 * granted)
      if granted == free or total + cost > room then break end
      granted, total = granted + 1, total + cost
    end
  end

  if granted == free then
    if free < jobs then flags = 1 end
  else
    -- Which rule holds the next job longest, the first of equals.
    for rule = 1, rules do
      if rooms[rule] - total < cost then
        local a, b, d, tolerance, tolerance_part, burst = unpack('>dddddd', ask, numbers + 48 * (rule - 1))
        local wait
        if cost > (d == 0 and a or burst) then
          wait = math.huge
        elseif d == 0 then
          wait = starts[rule] + b - time
        else
          -- In two steps: the numerators of both together may exceed 2^53.
          local part = total * b + parts[rule]
          local carried = floor(part / d)
          local whole = starts[rule] + total * a + carried
          part = cost * b + part - carried * d
          carried = floor(part / d)
          wait = whole + cost * a + carried - now - tolerance
          if part - carried * d > tolerance_part then wait = wait + 1 end
        end
        if blocking < 0 or wait > hint then blocking, hint = rule - 1, wait end
      end
    end
  end

  -- What is to be written.
  local size = 4
  for rule = 1, rules do
    if granted > 0 or stepped_down[rule] then
      local a, b, d = unpack('>ddd', ask, numbers + 48 * (rule - 1))
      local value, finish
      if d == 0 then
        value, finish = pack('>Bdd', 2, starts[rule], parts[rule] + total), now + starts[rule] + b - time
      else
        local part = total * b + parts[rule]
        local carried = floor(part / d)
        local tat = starts[rule] + total * a + carried
        value, finish = pack('>Bddd', 1, tat, part - carried * d, d), tat + 1
      end
      writes[size + 1], writes[size + 2], size = ARGV[2 + rule], value, size + 2
      keep(finish)
      changed = true
    end
  end

  if limit >= 0 and granted > 0 then
    first = (fence > least and fence or least)
    first = (first > time and first or time) + 1
    fence = first + granted - 1
    if fence >= 9007199254740992 then return corrupt(key, 'no greater fencing token can be told') end
    local finish = now + ttl
    keep(finish)
    keep(now + 3600000000)
    local score, command = format('%.0f', finish), {'ZADD', leases}
    for job = 1, granted do
      command[2 * job + 1], command[2 * job + 2] = score, ARGV[taken + job]
    end
    local added = write(command)
    if type(added) == 'table' then return refused(added, leases) end
    failure = keep_leases(finish)
    changed = true
  end
end

-- Slots that this very ask took again are no news to anybody.
local tells = freed > granted and wanted > now
if tells then wanted, changed = 0, true end
if flags == 1 and waits == 1 and wanted < now + 1000000 then
  wanted, changed = now + 2000000, true
  keep(wanted)
end
-- Refusals keep the clock too, once a second: a step back is to make no debt, lease or pause longer than it is now.
if head and not stale and now - last >= 1000000 then changed = true end
if changed then
  failure = failure or save(head, writes)
  if failure then
    if first > 0 then pcall('ZREM', leases, spread(ARGV, taken + 1, taken + granted)) end
    return failure
  end
end
-- (A test's own commands go here.)
if tells then flags = flags + publish('f', ARGV[told], ARGV[told + 1]) end
if stale then return pack('>dB', time, 1) end
return pack('>dBddddddB', time, 0, granted, now, first, blocking, hint, paused, flags)
