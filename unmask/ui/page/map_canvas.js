// The drawn part of the map: points that can be zoomed, moved and pointed at.

const SHAPES = ["circle", "square", "triangle", "diamond", "plus", "star", "flipped", "cross"];
const COLOURS = 6;
export const STYLES = 24; // then colours and shapes in turn meet again
const LOOKS = Array.from({ length: STYLES }, (_, label) => ({ colour: "--p" + (label % COLOURS), shape: SHAPES[label % SHAPES.length] }));
/** How points look whose label has no look of its own. */
export const REST = { colour: "--muted", shape: "bar" };

/** How points of a label look. Labels that follow each other differ in colour and in shape. */
export function styleOf(label) {
  return LOOKS[label];
}

/** Corners of shapes around 0, in units of their size. */
const CORNERS = {
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  flipped: [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
  diamond: [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
  plus: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
  star: Array.from({ length: 10 }, (_, at) => [Math.sin((at * Math.PI) / 5), -Math.cos((at * Math.PI) / 5)].map((one) => one * (at % 2 ? 0.6 : 1.4))),
};
CORNERS.cross = CORNERS.plus.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]);

/** Add a shape to the path of a context. */
export function addShape(context, shape, x, y, size) {
  if (shape === "circle") {
    context.moveTo(x + size, y);
    context.arc(x, y, size, 0, 2 * Math.PI);
  } else if (shape === "square") context.rect(x - 0.9 * size, y - 0.9 * size, 1.8 * size, 1.8 * size);
  else if (shape === "bar") context.rect(x - 1.2 * size, y - 0.4 * size, 2.4 * size, 0.8 * size);
  else CORNERS[shape].forEach(([right, down], at) => context[at ? "lineTo" : "moveTo"](x + right * size, y + down * size));
  context.closePath();
}

/** A shape as a small picture: to copy it ten thousand times is much faster than to fill as many paths. */
function stampOf(shape, colour, size, ratio) {
  const stamp = document.createElement("canvas");
  stamp.width = stamp.height = Math.ceil((2.6 * size + 2) * ratio);
  const context = stamp.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, stamp.width / 2, stamp.width / 2);
  context.fillStyle = colour;
  context.beginPath();
  addShape(context, shape, 0, 0, size);
  context.fill();
  return stamp;
}

export class MapCanvas {
  /** hovered, selected: called with the place of a point, or null; moved: after the view has changed. */
  constructor(canvas, { hovered, selected, moved }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.tell = { hovered, selected, moved };
    this.points = [];
    this.styles = () => null;
    this.faded = () => false;
    this.chosen = null;
    this.near = [];
    this.over = null;
    this.pointers = new Map();
    this.reset();
    this.listen();
  }

  reset() {
    this.zoom = 1;
    this.centre = [0, 0];
  }

  setPoints(points) {
    this.points = points;
    this.over = null;
    this.reset();
    this.draw();
  }

  get size() {
    return [this.canvas.clientWidth, this.canvas.clientHeight];
  }

  get unit() {
    return 0.46 * Math.min(...this.size) * this.zoom;
  }

  /** How points come to lie on the canvas: scale and shift of each axis, in pixels. Ask once for many points. */
  get frame() {
    const [width, height] = this.size;
    const unit = this.unit;
    const across = unit * Math.min(1.6, Math.max(1, width / height)); // a wide canvas spreads the points
    return { width, height, across, up: -unit, left: width / 2 - this.centre[0] * across, top: height / 2 + this.centre[1] * unit };
  }

  /** Where a point lies on the canvas, in pixels. */
  at(place, frame = this.frame) {
    const point = this.points[place];
    return [frame.left + point[0] * frame.across, frame.top + point[1] * frame.up];
  }

  inView(place, frame) {
    const [x, y] = this.at(place, frame);
    return x >= 0 && y >= 0 && x <= frame.width && y <= frame.height;
  }

  nearest(x, y, within) {
    let best = null;
    let least = within * within;
    const frame = this.frame;
    for (let place = 0; place < this.points.length; place++) {
      const [px, py] = this.at(place, frame);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least && !this.faded(place)) [best, least] = [place, distance];
    }
    return best;
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.paint();
    });
  }

  paint() {
    const { canvas, context, frame } = this;
    const { width, height } = frame;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const size = Math.min(7, (this.points.length > 4000 ? 2 : this.points.length > 800 ? 2.8 : 4) * Math.sqrt(this.zoom) ** 0.6);
    const groups = [new Map(), new Map()]; // faded and not: the points of each look
    for (let place = 0; place < this.points.length; place++) {
      const [x, y] = this.at(place, frame);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      const group = groups[this.faded(place) ? 0 : 1];
      const look = this.styles(place);
      if (group.has(look)) group.get(look).push(x, y);
      else group.set(look, [x, y]);
    }
    groups.forEach((group, at) => {
      context.globalAlpha = at ? 0.8 : 0.1;
      for (const [look, places] of group) {
        const stamp = stampOf(look.shape, colour(look.colour), size, ratio);
        const side = stamp.width / ratio;
        for (let next = 0; next < places.length; next += 2) context.drawImage(stamp, places[next] - side / 2, places[next + 1] - side / 2, side, side);
      }
    });
    context.globalAlpha = 1;
    const ring = (place, name, line, radius) => {
      const [x, y] = this.at(place);
      context.strokeStyle = colour(name);
      context.lineWidth = line;
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.stroke();
    };
    if (this.chosen !== null) {
      const [x, y] = this.at(this.chosen);
      context.strokeStyle = colour("--muted");
      context.lineWidth = 0.8;
      for (const place of this.near) {
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(...this.at(place));
        context.stroke();
      }
      for (const place of this.near) ring(place, "--ink", 1.2, size + 2.5);
      ring(this.chosen, "--ink", 2.4, size + 4);
    }
    if (this.over !== null) ring(this.over, "--ink", 1.6, size + 3);
    if (canvas.matches(":focus-visible")) {
      context.strokeStyle = colour("--muted");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(width / 2 - 7, height / 2);
      context.lineTo(width / 2 + 7, height / 2);
      context.moveTo(width / 2, height / 2 - 7);
      context.lineTo(width / 2, height / 2 + 7);
      context.stroke();
    }
  }

  /** Zoom by a factor, so that what is below (x, y) stays there. */
  zoomBy(factor, x = this.size[0] / 2, y = this.size[1] / 2) {
    const zoom = Math.min(60, Math.max(0.5, this.zoom * factor));
    const [width, height] = this.size;
    const wide = this.frame.across / this.unit;
    const gain = 1 / this.unit;
    this.zoom = zoom;
    const rest = gain - 1 / this.unit;
    this.centre = [this.centre[0] + ((x - width / 2) * rest) / wide, this.centre[1] - (y - height / 2) * rest];
    this.changed();
  }

  pan(dx, dy) {
    this.centre = [this.centre[0] - dx / this.frame.across, this.centre[1] + dy / this.unit];
    this.changed();
  }

  changed() {
    this.draw();
    clearTimeout(this.settling);
    this.settling = setTimeout(this.tell.moved, 150);
  }

  hover(place) {
    if (place === this.over) return;
    this.over = place;
    this.tell.hovered(place);
    this.draw();
  }

  listen() {
    const { canvas } = this;
    const local = (event) => [event.offsetX, event.offsetY];
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 300), ...local(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, local(event));
      this.travelled = this.pointers.size > 1 ? 99 : 0;
    });
    canvas.addEventListener("pointermove", (event) => this.move(event, local(event)));
    const lift = (event) => {
      if (this.pointers.delete(event.pointerId) && event.type === "pointerup" && this.travelled < 5) {
        const place = this.nearest(...local(event), event.pointerType === "touch" ? 24 : 10);
        if (place !== null) this.tell.selected(place);
      }
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.draw());
    canvas.addEventListener("keydown", (event) => {
      const step = {
        ArrowLeft: () => this.pan(60, 0), ArrowRight: () => this.pan(-60, 0), ArrowUp: () => this.pan(0, 60), ArrowDown: () => this.pan(0, -60),
        "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5),
        0: () => { this.reset(); this.changed(); },
        Enter: () => {
          const place = this.nearest(this.size[0] / 2, this.size[1] / 2, 1e4);
          if (place !== null) this.tell.selected(place);
        },
      }[event.key];
      if (!step || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      step();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  move(event, [x, y]) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.hover(this.nearest(x, y, 12));
      return;
    }
    const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, position]) => position);
    if (others.length) { // two fingers zoom
      const apart = (position) => Math.hypot(position[0] - others[0][0], position[1] - others[0][1]);
      this.zoomBy(apart([x, y]) / Math.max(1, apart(before)), (x + others[0][0]) / 2, (y + others[0][1]) / 2);
    } else this.pan(x - before[0], y - before[1]);
    this.travelled += Math.hypot(x - before[0], y - before[1]);
    this.pointers.set(event.pointerId, [x, y]);
  }
}
