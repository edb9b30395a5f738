;;; blame.el --- What showing who wrote each line costs  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  A file of 20,000 lines with 500 turns, each of which wrote
;; two places: the answer of the journal is read and shown, the window is
;; scrolled, text is typed, and what is not saved is sent.  All of it but the
;; redisplay is ours.

;;; Code:

(require 'measure)
(require 'qwen-companion-blame)

(defconst blame-bench--turns 500
  "Turns in the file.")
(defconst blame-bench--lines 20000
  "Lines in the file.")

(defvar blame-bench--payload nil
  "The payload of the last question who wrote the lines.")

(defun blame-bench--reply (id)
  "Return the answer with ID as the text that comes from the Python process."
  (prin1-to-string
   (list :id id
         :origins (cl-loop for turn below blame-bench--turns
                           collect (list :who 'agent :turn (format "%016x-%d" turn turn)))
         :runs (list :text (mapconcat (lambda (run) (format "%d 4 %d" (1+ (* run 20)) (/ run 2)))
                                      (number-sequence 0 (1- (* 2 blame-bench--turns))) " ")))))

(defun blame-bench--called (method payload)
  "Answer METHOD with PAYLOAD where it is for a prompt; keep any other PAYLOAD."
  (pcase method
    ('journal-origins (setq blame-bench--payload payload))
    ('journal-prompts
     (qwen-companion-journal-on-reply
      (list :id (plist-get payload :id)
            :turns (mapcar (lambda (turn)
                             (list :turn turn :session "6b1f0c52-2a70-4d4c-8e0e-2b6d5b2d7a11"
                                   :client "Qwen Code 0.24.4" :start 1.7e12
                                   :models '("qwen3-coder-plus")))
                           (plist-get payload :turns))
            :prompts (list :text (mapconcat (lambda (_) (make-string 300 ?x))
                                            (plist-get payload :turns) "\0"))))))
  t)

(defun blame-bench--type ()
  "Type 100 characters, and take them back."
  (dotimes (_ 100)
    (execute-kbd-macro "x"))
  (delete-region (- (point) 100) (point)))

(defun blame-bench--measure ()
  "Return the milliseconds of the processor of each thing."
  (let (result answer)
    (cl-flet ((note (function) (push (measure-cpu-ms function) result)))
      (goto-char (point-min))
      (note #'blame-bench--type)
      (note #'qwen-companion-blame-mode)
      (setq answer (blame-bench--reply (plist-get blame-bench--payload :id)))
      (note (lambda () (setq answer (car (read-from-string answer)))))
      (note (lambda () (qwen-companion-journal-on-reply answer)))
      (redisplay t)
      (goto-char (point-max))
      (set-window-start nil (line-beginning-position -30))
      (note (lambda () (qwen-companion-blame--scrolled (selected-window) nil)))
      (setq buffer-read-only nil)
      (note #'blame-bench--type)
      (note #'qwen-companion-blame--refresh)
      (set-buffer-modified-p nil)
      (qwen-companion-blame-mode -1)
      (nreverse result))))

(defun blame-bench-main ()
  "Measure and print."
  (let* ((file (make-temp-file "blame-bench-" nil ".txt"))
         (spool (make-temp-file "blame-bench-" t))
         (inhibit-message t))
    (with-temp-file file
      (dotimes (line blame-bench--lines)
        (insert (format "value_%d = compute(%d)\n" line (% (* line 7919) 10007)))))
    (cl-letf (((symbol-function 'qwen-companion-state) (lambda () 'ready))
              ((symbol-function 'qwen-companion-backend-connected-p) #'always)
              ((symbol-function 'qwen-companion-backend-spool) (lambda () spool))
              ((symbol-function 'qwen-companion-backend-call) #'blame-bench--called))
      (switch-to-buffer (find-file-noselect file))
      (let ((medians (measure-medians (cl-loop repeat measure-rounds
                                               collect (blame-bench--measure)))))
        (cl-loop for what in '("100 keys without it" "the mode" "the answer is read" "the answer is shown"
                               "a window is scrolled" "100 keys" "a pause after unsaved text")
                 for median in medians
                 do (measure-row (format "who wrote %d lines, %d turns, in Emacs: %s"
                                         blame-bench--lines blame-bench--turns what)
                                 (format "%.1f ms" median) "5 ms"))))
    (kill-buffer)
    (delete-file file)
    (delete-directory spool t)))

(blame-bench-main)

;;; blame.el ends here
