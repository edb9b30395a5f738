;;; chat.el --- What a chat costs while text streams into it  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows how long a report blocks Emacs: a piece of an answer
;; and a new state of a tool, at the end of an empty conversation and of one
;; of 20,000 lines; and beside it the plain insertion of such a piece into a
;; buffer of that many lines in the same run.  Garbage is collected now and
;; then whatever runs; that is not in the times but counted.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)
(require 'qwen-companion-chat)

(defconst chat-bench--piece
  (concat "and the *next* words of an answer with `code`,\n"
          "some 2 KB at a time, as a batch of streamed text has them.\n"
          (apply #'concat (make-list 20 "A line of the answer that is as long as most lines are, and\n")))
  "A batch of streamed text.")

(defvar chat-bench--collections nil "How often the last calls collected garbage.")

(defun chat-bench--times (count function)
  "Return the sorted milliseconds of COUNT calls of FUNCTION."
  (garbage-collect)
  (let ((before gcs-done))
    (prog1 (sort (cl-loop for number below count
                          collect (let ((start (float-time))
                                        (collecting gc-elapsed))
                                    (funcall function number)
                                    (* 1000 (- (float-time) start (- gc-elapsed collecting)))))
                 #'<)
      (setq chat-bench--collections (- gcs-done before)))))

(defun chat-bench--line (what times plain)
  "Print WHAT with its TIMES, and how they compare to those of PLAIN."
  (let ((p99 (lambda (times) (nth (floor (* 0.99 (length times))) times)))
        (median (lambda (times) (nth (/ (length times) 2) times))))
    (princ (format "%-36s %8.2f %8.2f %8.2f %10.1f %12d\n" what (funcall median times)
                   (funcall p99 times) (car (last times))
                   (/ (funcall median times) (max 0.001 (funcall median plain)))
                   chat-bench--collections))))

(defun chat-bench--turn (turn &rest changes)
  "Show CHANGES of TURN."
  (qwen-companion-chat--on-turn
   (list :session "s" :changes (mapcar (lambda (change) (append (list :turn turn) change))
                                       changes))))

(defun chat-bench--fill (turns)
  "Fill the current chat with TURNS of 20 lines each."
  (dotimes (turn turns)
    (chat-bench--turn
     (format "old%d" turn)
     '(:kind text :voice user :by me :text "What is it?")
     '(:kind text :voice thought :text "Let me see.\nAnd see.\n")
     (list :kind 'tool :id (format "tool%d" turn) :status 'done :title "Read it" :output "a\nb\nc\n")
     '(:kind text :voice answer :text "It is:\n\n```elisp\n(defun name ()\n  t)\n```\n\nSo.\n"))))

(defun chat-bench--plain (lines)
  "Return the times of plain insertions at the end of LINES lines."
  (with-temp-buffer
    (buffer-enable-undo)
    (dotimes (_ lines)
      (insert "A line of the answer that is as long as most lines are, and\n"))
    (chat-bench--times 500 (lambda (_) (insert chat-bench--piece)))))

(defun chat-bench--report (turns)
  "Measure a chat that has TURNS."
  (with-current-buffer (qwen-companion-chat--make nil)
    (chat-bench--fill turns)
    (switch-to-buffer (current-buffer))
    (let* ((lines (count-lines (point-min) (point-max)))
           (plain (chat-bench--plain lines)))
      (goto-char (point-max))
      (insert "a prompt that is being written")
      (chat-bench--line (format "%d lines: batch of an answer" lines)
                        (chat-bench--times
                         500 (lambda (_)
                               (chat-bench--turn "new" (list :kind 'text :voice 'answer
                                                             :text chat-bench--piece))))
                        plain)
      (chat-bench--line (format "%d lines: state of a tool" lines)
                        (chat-bench--times
                         500 (lambda (number)
                               (chat-bench--turn
                                "new" (list :kind 'tool :id "x" :status 'running :title "Run it"
                                            :output (make-string (* 32 number) ?x)))))
                        plain)
      (chat-bench--line (format "%d lines: a new tool" lines)
                        (chat-bench--times
                         500 (lambda (number)
                               (chat-bench--turn
                                "new" (list :kind 'tool :id (format "n%d" number) :status 'running
                                            :title "Run it" :output "a\nb\n"))))
                        plain)
      (chat-bench--line (format "%d lines: faces of a screen" lines)
                        (chat-bench--times
                         100 (lambda (number)
                               (let ((start (+ (point-min) (* 500 number))))
                                 (qwen-companion-chat-text--fontify
                                  start (min (point-max) (+ start 3000))))))
                        plain))
    (setq kill-buffer-query-functions nil)
    (kill-buffer)))

(cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
  (princ (format "\n%-36s %8s %8s %8s %10s %12s\n" "chat, milliseconds" "median" "p99" "most"
                 "ours/plain" "collections"))
  (chat-bench--report 1)
  (chat-bench--report 1000)
  (qwen-companion-chat--unwatch))

;;; chat.el ends here
