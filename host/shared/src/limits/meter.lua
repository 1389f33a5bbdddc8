-- The meters of one subject, as meter.rs and lows.rs of tidegate-limits have them, in the server's own time: levels in
-- parts of a minute's amount, and how low that of tokens was since earlier charges. A charge is named by its time.
local UNIT, MAX_LOWS = 60000000, 32
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- A level now, of a rate that is perhaps another one since: no more than a minute's amount of a lower one, but for a debt, which
-- takes as long to pay as it did.
local function level_now(level, passed, before, rate)
  if before == 0 then before = rate end
  level = math.max(0, level - passed * before)
  if rate == 0 or rate >= before then return level end
  return math.min(level, math.max(rate * UNIT, level / before * rate))
end

-- {time, level of requests, level of tokens, last change, {change, level, change, level ...}, charges that may be corrected,
-- when it began, rate of requests, rate of tokens}
local function load(key, requests, tokens)
  local packed = redis.call('GET', key)
  if not packed then return { now, 0, 0, 0, {}, 0, now, requests, tokens } end
  local meter = cmsgpack.unpack(packed)
  local passed = math.max(0, now - meter[1])
  meter[1] = meter[1] + passed
  meter[2] = level_now(meter[2], passed, meter[8] or 0, requests)
  meter[3] = level_now(meter[3], passed, meter[9] or 0, tokens)
  if requests > 0 then meter[8] = requests end
  if tokens > 0 and tokens ~= meter[9] then
    meter[9] = tokens
    for i = 2, #meter[5], 2 do meter[5][i] = math.min(meter[5][i], meter[3]) end
  end
  return meter
end

-- One that is empty is as one that never was; the others go when they will be.
local function save(key, meter, requests, tokens)
  local left = 0
  if requests > 0 then left = meter[2] / requests end
  if tokens > 0 then left = math.max(left, meter[3] / tokens) end
  if left == 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, cmsgpack.pack(meter), 'PX', math.ceil(left / 1000) + 1000)
  end
end

-- Notes the level of tokens just before a change.
local function change(meter)
  local at = math.max(now, meter[4] + 1)
  local lows, level = meter[5], meter[3]
  meter[4] = at
  while #lows > 0 and lows[#lows] >= level do
    lows[#lows] = nil
    lows[#lows] = nil
  end
  lows[#lows + 1] = at
  lows[#lows + 1] = level
  if #lows > 2 * MAX_LOWS then
    local lowest = table.remove(lows, 2)
    table.remove(lows, 1)
    lows[2] = lowest
  end
  return at
end

-- Gives back as much as was not lost to idleness since that change.
local function give_back(meter, since, amount)
  local lows, first = meter[5], 1
  while lows[first] and lows[first] <= since do first = first + 2 end
  if not lows[first] then return end
  local by = math.min(amount, lows[first + 1])
  for i = first + 1, #lows, 2 do lows[i] = lows[i] - by end
  while first > 1 and lows[first - 1] >= lows[first + 1] do
    table.remove(lows, first - 2)
    table.remove(lows, first - 2)
    first = first - 2
  end
  meter[3] = meter[3] - by
end
