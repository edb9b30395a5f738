;;; changes.el --- What the buffer of changes costs with many turns  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows turns of ten files each, one in five of them an
;; undoing, and one that goes on; then news of that one come, as they do five
;; times a second while an agent works.  Then the same of 50 turns that have
;; 3,000 files together.

;;; Code:

(require 'measure)
(require 'qwen-companion-changes)

(defun changes-bench--turn (number turns &optional files)
  "Return the turn NUMBER of TURNS with FILES or ten of them."
  (let ((id (format "%06d" number)))
    (list :id id :root "/project/" :session "s" :client "Qwen Code" :who 'agent
          :prompt (format "Prompt %d" number) :start (* 1000.0 number)
          :end (and (< number turns) (* 1000.0 (1+ number)))
          :undone-of (and (zerop (% number 5)) (format "%06d" (- number 3)))
          :files (mapcar (lambda (file)
                           (list :path (format "/project/%s/%d.txt" id file) :kind 'changed
                                 :added 3 :deleted 2))
                         (number-sequence 1 (or files 10))))))

(defun changes-bench--measure (turns &optional files)
  "Return the milliseconds of the processor for TURNS: opening, and an update.
Each turn has FILES or ten files."
  (qwen-companion-journal-on-turns
   (list :reset t
         :turns (mapcar (lambda (number) (changes-bench--turn number turns files))
                        (number-sequence 1 turns))))
  (with-temp-buffer
    (qwen-companion-changes-mode)
    (list (measure-cpu-ms #'qwen-companion-changes-items-update)
          (progn
            (qwen-companion-journal-on-turns
             (list :turns (list (changes-bench--turn turns turns (1+ (or files 10))))))
            (measure-cpu-ms #'qwen-companion-changes-items-update)))))

(defun changes-bench--many-files ()
  "Measure 50 turns of 60 files and print."
  (cl-loop for ms in (measure-medians (cl-loop repeat measure-rounds
                                               collect (changes-bench--measure 50 60)))
           for (part goal) in '(("opened" "200 ms") ("a later update" "20 ms"))
           do (measure-row (format "changes of 50 turns with 3,000 files, %s" part)
                           (format "%.1f ms" ms) goal)))

(defun changes-bench-main ()
  "Measure and print."
  (let* ((sizes '(50 200 800))
         (rounds (cl-loop repeat measure-rounds
                          collect (mapcar #'changes-bench--measure sizes)))
         (medians (cl-loop for index from 0 below (length sizes)
                           collect (measure-medians
                                    (mapcar (lambda (round) (nth index round)) rounds)))))
    (cl-loop for part in '("opened" "a later update") for index from 0
             do (measure-row
                 (format "changes of 50, 200, 800 turns, %s; exponent" part)
                 (format "%s ms; %.2f"
                         (mapconcat (lambda (median) (format "%.1f" (nth index median)))
                                    medians ", ")
                         (measure-exponent
                          (cl-mapcar (lambda (size median) (cons size (nth index median)))
                                     sizes medians)))
                 "1"))))

(changes-bench-main)
(changes-bench--many-files)

;;; changes.el ends here
