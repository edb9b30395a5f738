;;; chat.el --- What a chat costs while text streams into it  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows how long a report keeps Emacs from the keys: a piece
;; of an answer, a new state of a tool, what loading a conversation brings;
;; in an empty conversation and in one of 20,000 lines; and beside it the
;; plain insertion of such a piece into a buffer of that many lines in the
;; same run.  Counted is the time of the processor.  Garbage is collected
;; now and then whatever runs: that is counted, and such a report left out.
;;
;; In a terminal, emacs -Q -nw -l scripts/checkout.el -L bench -l bench/chat.el
;; shows beside that what displaying it costs Emacs.

;;; Code:

(require 'cl-lib)
(require 'measure)
(require 'qwen-companion)
(require 'qwen-companion-chat)

(defconst chat-bench--piece
  (concat "and the *next* words of an answer with `code`,\n"
          "some 2 KB at a time, as a batch of streamed text has them.\n"
          (apply #'concat (make-list 20 "A line of the answer that is as long as most lines are, and\n")))
  "A batch of streamed text.")

(defconst chat-bench--budget 5
  "Milliseconds within which 99 of 100 reports are to be shown.")

(defvar chat-bench--collections nil "How often the last calls collected garbage.")
(defvar chat-bench--display nil "Sorted milliseconds for displaying what each did.")

(defun chat-bench--milliseconds (function &rest arguments)
  "Return the milliseconds that FUNCTION takes of the processor with ARGUMENTS.
Return nil when garbage was collected meanwhile."
  (let ((start (float-time (get-internal-run-time)))
        (collections gcs-done))
    (apply function arguments)
    (and (= collections gcs-done)
         (* 1000 (- (float-time (get-internal-run-time)) start)))))

(defun chat-bench--times (count function)
  "Return the sorted milliseconds of COUNT calls of FUNCTION with a number."
  (redisplay t)
  (garbage-collect)
  (let ((before gcs-done) times shown)
    (dotimes (number count)
      (push (chat-bench--milliseconds function number) times)
      (push (chat-bench--milliseconds #'redisplay t) shown))
    (setq chat-bench--collections (- gcs-done before)
          chat-bench--display (sort (delq nil shown) #'<))
    (sort (delq nil times) #'<)))

(defun chat-bench--line (what times plain)
  "Print WHAT with its TIMES, and how they compare to those of PLAIN."
  (cl-flet ((p99 (times) (nth (floor (* 0.99 (length times))) times))
            (median (times) (nth (/ (length times) 2) times)))
    (when (string-suffix-p "batch of an answer" what)
      (measure-row (format "chat of %s: p50, p99, MB per second of processor" what)
                   (format "%.2f ms, %.2f ms, %.0f MB" (median times) (p99 times)
                           (/ (length chat-bench--piece) 1000.0 (median times)))
                   (format "p99 %d ms" chat-bench--budget)))
    (princ (format "%-36s %8.2f %8.2f %8.2f %10.1f %12d %8s" what (median times)
                   (p99 times) (car (last times))
                   (/ (median times) (max 0.001 (median plain)))
                   chat-bench--collections
                   (if (< (p99 times) chat-bench--budget) "kept" "missed")))
    (princ (if noninteractive "\n"
             (format " %8.2f %8.2f\n" (median chat-bench--display) (p99 chat-bench--display))))))

(defun chat-bench--turn (turn &rest changes)
  "Show CHANGES of TURN."
  (qwen-companion-chat--on-turn
   (list :session "s" :changes (mapcar (lambda (change) (append (list :turn turn) change))
                                       changes))))

(defun chat-bench--say (turn text)
  "Show TEXT as the next of the answer in TURN."
  (chat-bench--turn turn (list :kind 'text :voice 'answer :text text)))

(defun chat-bench--load (number)
  "Show as many changes as one message holds of a conversation; NUMBER counts."
  (apply #'chat-bench--turn (format "loaded%d" number)
         (cl-loop for index below 8
                  collect (list :kind 'tool :id (format "loaded%d-%d" number index)
                                :status 'done :title "Read it" :output "a\nb\nc\n")
                  collect (list :kind 'text :voice 'answer :text "It is:\n\nSo.\n"))))

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
  (with-current-buffer (qwen-companion-chat-make-buffer nil)
    (chat-bench--fill turns)
    (switch-to-buffer (current-buffer))
    (let* ((lines (count-lines (point-min) (point-max)))
           (plain (chat-bench--plain lines)))
      (goto-char (point-max))
      (insert "a prompt that is being written")
      (chat-bench--line (format "%d lines: a message of loading" lines)
                        (chat-bench--times 50 #'chat-bench--load)
                        plain)
      (chat-bench--line (format "%d lines: batch of an answer" lines)
                        (chat-bench--times
                         500 (lambda (_) (chat-bench--say "new" chat-bench--piece)))
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
      (chat-bench--line (format "%d lines: a line of 200 KB grows" lines)
                        (progn
                          (chat-bench--say "long" (make-string 200000 ?x))
                          (chat-bench--times
                           500 (lambda (_) (chat-bench--say "long" "and more"))))
                        plain)
      (chat-bench--line (format "%d lines: faces of a screen" lines)
                        (chat-bench--times
                         100 (lambda (number)
                               (let ((start (+ (point-min) (* 500 number))))
                                 (qwen-companion-chat-markdown--fontify
                                  start (min (point-max) (+ start 3000))))))
                        plain))
    (setq kill-buffer-query-functions nil)
    (kill-buffer)))

;;; Growing

(defmacro chat-bench--in-chat (&rest body)
  "Run BODY in a new chat in the selected window."
  (declare (indent 0) (debug t))
  `(with-current-buffer (qwen-companion-chat-make-buffer nil)
     (switch-to-buffer (current-buffer))
     (goto-char (point-max))
     (unwind-protect
         (progn ,@body)
       (let ((kill-buffer-query-functions nil))
         (kill-buffer)))))

(defun chat-bench--tools (count)
  "Show a new turn with COUNT tools, in messages of 16."
  (let (times plain)
    (chat-bench--in-chat
      (setq plain (chat-bench--plain 1))
      (dotimes (part 4)
        (setq times
              (chat-bench--times
               (/ count 64)
               (lambda (number)
                 (apply #'chat-bench--turn "many"
                        (cl-loop for index below 16
                                 collect (list :kind 'tool
                                               :id (format "many%d-%d-%d" part number index)
                                               :status 'done :title "Read it"
                                               :output "a\nb\nc\n"))))))
        (chat-bench--line (format "16 tools, %d of %d there" (* (1+ part) (/ count 4)) count)
                          times plain)))))

(defun chat-bench--sizes (&rest megabytes)
  "Show an answer that grows to each of MEGABYTES, and time pieces there."
  (chat-bench--in-chat
    (let ((long (apply #'concat (make-list 32 chat-bench--piece)))
          (size 0))
      (with-temp-buffer
        (buffer-enable-undo)
        (let ((chat (window-buffer)))
          (dolist (goal megabytes)
            (while (< size (* goal 1000000))
              (insert long)
              (with-current-buffer chat
                (chat-bench--say "grows" long))
              (cl-incf size (length long)))
            (let ((times (chat-bench--times 200 (lambda (_) (insert chat-bench--piece)))))
              (with-current-buffer chat
                (chat-bench--line (format "a piece of 1.3 KB at %d MB" goal)
                                  (chat-bench--times
                                   200 (lambda (_) (chat-bench--say "grows" chat-bench--piece)))
                                  times)))))))))

(let ((standard-output (if noninteractive t (get-buffer-create "*chat bench*"))))
  (cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
    (princ (format "\n%-36s %8s %8s %8s %10s %12s %8s%s\n" "chat, milliseconds" "median" "p99"
                   "most" "ours/plain" "collections" (format "p99 < %d" chat-bench--budget)
                   (if noninteractive "" "  display      p99")))
    (chat-bench--report 1)
    (chat-bench--report 1000)
    (chat-bench--tools 4000)
    (chat-bench--sizes 1 4 12)
    (qwen-companion-chat-state--unwatch))
  (unless noninteractive
    (switch-to-buffer "*chat bench*")))

;;; chat.el ends here
