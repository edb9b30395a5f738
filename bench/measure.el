;;; measure.el --- Times, medians and rows of the measurements  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Shared by the measurements in Emacs Lisp, see `make bench'.

;;; Code:

(require 'cl-lib)

(defconst measure-rounds 5
  "How often each thing is measured; the median counts.
All things of a row are measured in turns, so that a change of the
machine's load meets all of them.")

(defun measure-ms (function)
  "Return the milliseconds that FUNCTION takes."
  (garbage-collect)
  (let ((start (float-time)))
    (funcall function)
    (* 1000 (- (float-time) start))))

(defun measure-cpu-ms (function)
  "Return the milliseconds that FUNCTION takes of the processor.
No garbage is collected meanwhile: that depends on all buffers there are."
  (garbage-collect)
  (let ((gc-cons-threshold most-positive-fixnum)
        (start (float-time (get-internal-run-time))))
    (funcall function)
    (* 1000 (- (float-time (get-internal-run-time)) start))))

(defun measure-median (numbers)
  "Return the median of NUMBERS, a list."
  (nth (/ (length numbers) 2) (sort (copy-sequence numbers) #'<)))

(defun measure-medians (rounds)
  "Return the list of medians of ROUNDS, lists of numbers of equal length."
  (apply #'cl-mapcar (lambda (&rest numbers) (measure-median numbers)) rounds))

(defun measure-ratio (rounds &optional index)
  "Return the median of the ratios in ROUNDS, lists of numbers.
Each is that of number INDEX, by default the first, to the last."
  (measure-median (mapcar (lambda (numbers)
                            (/ (float (nth (or index 0) numbers)) (car (last numbers))))
                          rounds)))

(defun measure-exponent (points)
  "Return the exponent of the growth in POINTS, conses (SIZE . TIME).
It is 1 where the time grows as the size does."
  (let* ((xs (mapcar (lambda (point) (log (car point))) points))
         (ys (mapcar (lambda (point) (log (max 1e-6 (cdr point)))) points))
         (mean (lambda (numbers) (/ (apply #'+ numbers) (length numbers))))
         (x (funcall mean xs))
         (y (funcall mean ys)))
    (/ (cl-loop for a in xs for b in ys sum (* (- a x) (- b y)))
       (cl-loop for a in xs sum (expt (- a x) 2)))))

(defun measure-row (what measured goal)
  "Print a row of the table of speed: WHAT was MEASURED, and the GOAL."
  (princ (format "| speed | %s | %s | %s |\n" what measured goal)))

(provide 'measure)
;;; measure.el ends here
