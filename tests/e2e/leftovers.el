;;; leftovers.el --- What going on and off again and again leaves behind  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Run in batch by test_start.py after scripts/checkout.el.  Turns the mode on
;; and off again and again, at different moments of its start, and then
;; compares what there is with what there was: prints nothing when all is as
;; before, else each difference on a line.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)

(defconst leftovers--limit
  (string-to-number (or (getenv "QWEN_COMPANION_TEST_LIMIT") "120"))
  "Seconds to wait for what must happen; see tests/helpers/limit.py.")

(defun leftovers--wait (predicate)
  "Let Emacs do its work until PREDICATE returns non-nil."
  (with-timeout (leftovers--limit (error "Waited too long; timers %S, processes %S" (leftovers--timers timer-list) (process-list)))
    (while (not (funcall predicate))
      (accept-process-output nil 0.02))))

(defun leftovers--hooks ()
  "Return all hooks with their global functions."
  (let (hooks)
    (mapatoms
     (lambda (symbol)
       (when (and (boundp symbol) (default-boundp symbol)
                  (string-match-p "-\\(?:hooks?\\|functions\\)\\'" (symbol-name symbol))
                  (listp (default-value symbol)))
         (push (cons symbol (format "%S" (default-value symbol))) hooks))))
    hooks))

(defun leftovers--variables ()
  "Return the variables of the companion with their values as text."
  (let (variables)
    (mapatoms
     (lambda (symbol)
       (when (and (boundp symbol)
                  (string-prefix-p "qwen-companion-" (symbol-name symbol))
                  ;; The time itself goes on.
                  (not (eq symbol 'qwen-companion-timers--seen))
                  ;; What keys and syntax are made of is no state.
                  (not (keymapp (symbol-value symbol)))
                  (not (char-table-p (symbol-value symbol)))
                  (not (string-suffix-p "-mode-hook" (symbol-name symbol))))
         (push (cons symbol (format "%S" (symbol-value symbol))) variables))))
    variables))

(defun leftovers--timers (timers)
  "Return the functions of TIMERS as text, but for that of Emacs's own undo."
  (remove "undo-auto--boundary-timer"
          (mapcar (lambda (timer) (format "%S" (timer--function timer))) timers)))

(defun leftovers--state ()
  "Return all that the mode might leave, as an alist of printable values."
  (append
   `((processes . ,(mapcar #'process-name (process-list)))
     (connections . ,(length epc:live-connections))
     (timers . ,(leftovers--timers timer-list))
     (idle-timers . ,(leftovers--timers timer-idle-list))
     (buffers . ,(sort (mapcar #'buffer-name (buffer-list)) #'string<))
     (environment . ,(sort (copy-sequence (default-value 'process-environment)) #'string<)))
   (leftovers--hooks)
   (leftovers--variables)))

(defun leftovers--cycle (moment)
  "Turn the mode on, and off again at MOMENT."
  (qwen-companion-mode 1)
  (leftovers--wait
   (pcase moment
     ('at-once #'always)
     ('connected #'qwen-companion-backend-connected-p)
     ('ready (lambda () (eq (qwen-companion-state) 'ready)))))
  (when (eq moment 'ready)
    (qwen-companion-context))
  (qwen-companion-mode -1))

(defun leftovers--settle ()
  "Wait until the processes that were told to stop have ended."
  (leftovers--wait (lambda () (null (process-list))))
  ;; One is the patience of this wait itself.
  (leftovers--wait (lambda () (null (cdr (leftovers--timers timer-list))))))

(defun leftovers-main ()
  "Print what ten times on and off have left."
  ;; The first time loads libraries, which stay.
  (leftovers--cycle 'ready)
  (leftovers--settle)
  (let ((before (leftovers--state)))
    ;; Each start of a backend that is waited for takes a second of processor time.
    (dotimes (number 10)
      (leftovers--cycle (cond ((zerop (% number 10)) 'ready)
                              ((zerop (% number 5)) 'connected)
                              (t 'at-once))))
    (leftovers--settle)
    (pcase-dolist (`(,what . ,value) (leftovers--state))
      (let ((was (alist-get what before 'nothing)))
        (unless (equal value was)
          (princ (format "%S: was %S, is %S\n" what was value)))))))

(provide 'leftovers)
;;; leftovers.el ends here
