-- The commonest asks by a way of their own: one GCRA rule that has a state, one cost, and all jobs fit or the only one does
-- not. Whatever is not so changes nothing here and is left to what follows, with what was read. The layouts are those of
-- `state.lua` and `admit.lua`.
local read
if #ARGV[2] == 112 and not stale then
  local rules, jobs, equal, limit, ttl, least, releases, waits, a, b, d, tolerance, tolerance_part, burst, numbers =
    unpack('>dddddddddddddd', ARGV[2])
  local total = jobs * equal
  if rules == 1 and d > 0 and total > 0 and total <= burst and limit < 0 and releases == 0 then
    read = pcall('HMGET', key, 'h', ARGV[3])
    local head, stored = read[1], read[2]
    if head and stored and #head == 57 and #stored == 25 then
      local version, last, skew, pause, fence, deadline, leases_deadline, wanted = unpack('>Bddddddd', head)
      local kind, tat, part, denominator = unpack('>Bddd', stored)
      local now = time + skew
      if version == 1 and kind == 1 and denominator == d and now >= last and now >= pause then
        if tat < now then tat, part = now, 0 end
        part = part + total * b
        local carried = floor(part / d)
        tat, part = tat + total * a + carried, part - carried * d
        local over = tat - now - tolerance
        if over > 0 or over == 0 and part > tolerance_part then
          if jobs == 1 and now - last < 1000000 then
            local hint = part > tolerance_part and over + 1 or over
            return pack('>dBddddddB', time, 0, 0, now, 0, 0, hint, 0, 0)
          end
        -- A key that has to live longer goes the long way, about once a second.
        elseif tat < deadline then
          head = pack('>Bddddddd', 1, now, skew, pause, fence, deadline, leases_deadline, wanted)
          if type(pcall('HSET', key, 'h', head, ARGV[3], pack('>Bddd', 1, tat, part, d))) == 'number' then
            local granted, first, told, taken = jobs, 0, 4, 3
            -- (A test's own commands go here.)
            return pack('>dBdd', time, 0, granted, now)
          end
        end
      end
    end
  end
end
